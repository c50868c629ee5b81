//! The command line.

use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub only: String,
    pub rounds: usize,
    pub out: Option<PathBuf>,
    /// On the CPU that stands in for a GPU, in small.
    pub is_emulated: bool,
}

impl Arguments {
    pub fn read(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut read = Arguments { only: String::new(), rounds: 11, out: None, is_emulated: false };
        while let Some(name) = given.next() {
            let mut value = || given.next().ok_or(format!("{name}: expected a value behind it"));
            match name.as_str() {
                "--emulated" => read.is_emulated = true,
                "--only" => read.only = value()?,
                "--out" => read.out = Some(value()?.into()),
                "--rounds" => {
                    let text = value()?;
                    let rounds = text.parse().ok().filter(|&rounds| rounds > 0);
                    read.rounds = rounds.ok_or(format!("--rounds {text}: expected a whole number above 0"))?;
                }
                _ => return Err(format!("{name}: expected --only, --rounds, --out or --emulated")),
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::Arguments;

    fn read(line: &str) -> Result<Arguments, String> {
        Arguments::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn everything_has_a_default() {
        let expected = Arguments { only: String::new(), rounds: 11, out: None, is_emulated: false };
        assert_eq!(read(""), Ok(expected));
        let expected = Arguments { only: "decode".into(), rounds: 3, out: Some("a.json".into()), is_emulated: true };
        assert_eq!(read("--rounds 3 --emulated --only decode --out a.json"), Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(read("--rounds none").unwrap_err(), "--rounds none: expected a whole number above 0");
        assert_eq!(read("--rounds 0").unwrap_err(), "--rounds 0: expected a whole number above 0");
        assert_eq!(read("--out").unwrap_err(), "--out: expected a value behind it");
        assert!(read("--often").unwrap_err().starts_with("--often: expected --only"));
    }
}
