//! The parts of a saved file, changed as an input says, and written again with right lengths, offsets and checksums.

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use serde_json::{Map, Value, json};
use twox_hash::XxHash3_64;

/// Numbers that could break a reader.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    255,
    1 << 16,
    1 << 29,
    i32::MAX as u64 - 1,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    (1 << 53) - 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// A file's texts and tensors, the tensors in their order, without the seal.
#[derive(Clone, Debug)]
pub struct Parts {
    texts: Vec<(String, String)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn is_pages(&self) -> bool {
        self.name.starts_with("pages.") || ["k", "v", "data"].contains(&&*self.name)
    }
}

impl Parts {
    pub fn read(file: &[u8]) -> Self {
        let end = 8 + u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
        let header: Map<String, Value> = serde_json::from_slice(&file[8..end]).expect("a header");
        let text = |(name, of): (&String, &Value)| (name.clone(), of.as_str().expect("a text").to_owned());
        let texts = header["__metadata__"].as_object().expect("texts").iter().map(text).collect();
        let tensor = |(name, of): (&String, &Value)| {
            let [start, stop] = [0, 1].map(|at| of["data_offsets"][at].as_u64().expect("an offset") as usize);
            let shape = of["shape"].as_array().expect("a shape").iter().map(|size| size.as_u64().expect("a size"));
            let dtype = of["dtype"].as_str().expect("a dtype").to_owned();
            let bytes = file[end..][start..stop].to_vec();
            (start, Tensor { name: name.clone(), dtype, shape: shape.collect(), bytes })
        };
        let all = header.iter().filter(|(name, _)| *name != "__metadata__" && *name != "seal");
        let mut tensors: Vec<(usize, Tensor)> = all.map(tensor).collect();
        tensors.sort_by_key(|(start, of)| (*start, of.bytes.len()));
        Parts { texts, tensors: tensors.into_iter().map(|(_, tensor)| tensor).collect() }
    }

    /// Replaces a part of a text everywhere.
    pub fn replace(&mut self, from: &str, to: &str) {
        self.texts.iter_mut().for_each(|(_, text)| *text = text.replace(from, to));
    }

    /// Changes one part.
    pub fn change(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.int_in_range(0..=8)? {
            0 => {
                let place = input.choose_index(self.texts.len())?;
                change_text(&mut self.texts[place].1, input)?;
            }
            1 => {
                let (to, from) = (input.choose_index(self.texts.len())?, input.choose_index(self.texts.len())?);
                self.texts[to].1 = self.texts[from].1.clone();
            }
            2 => {
                let [to, from] = self.two(input)?;
                self.tensors[to].name = self.tensors[from].name.clone();
            }
            3 => {
                let place = input.choose_index(self.tensors.len())?;
                self.tensors.remove(place);
            }
            4 => {
                let [one, other] = self.two(input)?;
                self.tensors.swap(one, other);
            }
            5 => {
                let place = input.choose_index(self.tensors.len())?;
                let size = input.choose_index(self.tensors[place].shape.len().max(1))?;
                let number = number(input)?;
                self.tensors[place].shape.get_mut(size).into_iter().for_each(|size| *size = number);
            }
            6 => {
                let place = input.choose_index(self.tensors.len())?;
                resize(&mut self.tensors[place], input)?;
            }
            _ => {
                let place = input.choose_index(self.tensors.len())?;
                change_bytes(&mut self.tensors[place].bytes, input)?;
            }
        }
        if self.tensors.is_empty() {
            self.tensors.push(Tensor { name: "k".to_owned(), dtype: "U8".to_owned(), shape: vec![0], bytes: vec![] });
        }
        Ok(())
    }

    fn two(&self, input: &mut Unstructured<'_>) -> Result<[usize; 2]> {
        Ok([input.choose_index(self.tensors.len())?, input.choose_index(self.tensors.len())?])
    }

    /// Puts the checksums of all pages right.
    pub fn sum_pages(&mut self) {
        let pages: Vec<Tensor> = self.tensors.iter().filter(|of| of.is_pages()).cloned().collect();
        let sums = self.tensors.iter_mut().filter(|of| of.name.starts_with("sums."));
        for (sums, pages) in sums.zip(pages) {
            let count = sums.bytes.len() / 8;
            if count > 0 && pages.bytes.len() >= count && pages.bytes.len().is_multiple_of(count) {
                let page = pages.bytes.chunks_exact(pages.bytes.len() / count);
                sums.bytes = page.flat_map(|page| XxHash3_64::oneshot(page).to_le_bytes()).collect();
            }
        }
    }

    /// Returns the header and the content, without the seal.
    pub fn written(&self) -> (String, Vec<u8>) {
        let mut header = Map::new();
        let texts: Map<String, Value> = self.texts.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
        header.insert("__metadata__".to_owned(), texts.into());
        let mut body = Vec::new();
        for Tensor { name, dtype, shape, bytes } in &self.tensors {
            let start = body.len();
            body.extend(bytes);
            let offsets = [start, body.len()];
            header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        }
        let offsets = [body.len(), body.len() + 8];
        header.insert("seal".to_owned(), json!({ "dtype": "U64", "shape": [1], "data_offsets": offsets }));
        (Value::from(header).to_string(), body)
    }

    /// Returns a file with this header and content, its length and its seal put right.
    pub fn sealed(&self, header: String, body: &[u8]) -> Vec<u8> {
        let mut header = header.into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let header = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
        let pages: usize = self.tensors.iter().take_while(|of| of.is_pages()).map(|of| of.bytes.len()).sum();
        let seal = XxHash3_64::oneshot(&[&header, &body[pages.min(body.len())..]].concat());
        [&header, body, &seal.to_le_bytes()].concat()
    }
}

/// Draws a number, often one that could break a reader.
fn number(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match input.int_in_range(0..=2)? {
        0 => input.int_in_range(0..=70)?,
        1 => *input.choose(&NUMBERS)?,
        _ => input.arbitrary()?,
    })
}

/// Changes one number or one byte of a text.
pub fn change_text(text: &mut String, input: &mut Unstructured<'_>) -> Result<()> {
    let digits: Vec<(usize, &str)> = text
        .match_indices(|sign: char| sign.is_ascii_digit())
        .filter(|(at, _)| *at == 0 || !text.as_bytes()[at - 1].is_ascii_alphanumeric())
        .collect();
    if !digits.is_empty() && input.ratio(3, 4)? {
        let (start, _) = digits[input.choose_index(digits.len())?];
        let rest = text[start..].find(|sign: char| !sign.is_ascii_digit());
        let end = rest.map_or(text.len(), |count| start + count);
        let number = match input.int_in_range(0..=9)? {
            0 => "-1".to_owned(),
            1 => "null".to_owned(),
            _ => number(input)?.to_string(),
        };
        text.replace_range(start..end, &number);
        return Ok(());
    }
    let start = input.choose_index(text.len().max(1))?;
    if text.is_char_boundary(start) && text.is_char_boundary(start + 1) {
        let sign = char::from(input.arbitrary::<u8>()? & 0x7f);
        text.replace_range(start..(start + 1).min(text.len()), sign.encode_utf8(&mut [0; 4]));
    }
    Ok(())
}

/// Gives a tensor more rows or fewer, in its shape and its bytes.
fn resize(of: &mut Tensor, input: &mut Unstructured<'_>) -> Result<()> {
    let Some(&rows) = of.shape.first() else { return Ok(()) };
    let row = of.bytes.len().checked_div(rows as usize).unwrap_or(4);
    let rows = input.int_in_range(0..=rows.min(99) + 2)?;
    of.shape[0] = rows;
    of.bytes.resize(rows as usize * row, input.arbitrary()?);
    Ok(())
}

/// Changes a byte, or replaces four bytes by a number.
fn change_bytes(bytes: &mut [u8], input: &mut Unstructured<'_>) -> Result<()> {
    if bytes.len() < 4 {
        return Ok(());
    }
    let at = input.choose_index(bytes.len() - 3)?;
    if input.arbitrary()? {
        bytes[at] ^= input.arbitrary::<u8>()?;
    } else {
        let number = number(input)? as u32;
        bytes[at - at % 4..][..4].copy_from_slice(&number.to_le_bytes());
    }
    Ok(())
}
