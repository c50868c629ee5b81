//! Unpacks what the archive for GPU machines carries, once: `unpack <file> <folder>`.
//!
//! The file is a tar in brotli, and behind it four bytes with the CRC-32 of all before them, since brotli does not tell what is damaged. The
//! folder is there once all of it is unpacked, and not before: what was interrupted begins anew.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use brotli_decompressor::Decompressor;

const CHECKSUM_LEN: usize = 4;

/// What is read of the file, and of the tar, at once.
const CHUNK: usize = 1 << 16;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [file, folder] = args.as_slice() else {
        eprintln!("unpack <file> <folder>");
        return ExitCode::from(2);
    };
    match unpack(Path::new(file), Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} cannot be unpacked: {error}", Path::new(file).display());
            ExitCode::FAILURE
        }
    }
}

fn unpack(file: &Path, folder: &Path) -> io::Result<()> {
    let mut opened = File::open(file)?;
    // A second one waits for the first, where the file system has locks, and finds its work done.
    let _ = opened.lock();
    if folder.is_dir() {
        return Ok(());
    }
    let mut bytes = Vec::new();
    opened.read_to_end(&mut bytes)?;
    let compressed = checked(&bytes)?;

    let partial = folder.with_extension("partial");
    remove(&partial)?;
    fs::create_dir(&partial)?;
    if let Err(error) = extract(compressed, &partial) {
        let _ = remove(&partial);
        return Err(error);
    }
    fs::rename(&partial, folder)
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What is before the checksum, which it has to be that of.
fn checked(bytes: &[u8]) -> io::Result<&[u8]> {
    match bytes.split_last_chunk::<CHECKSUM_LEN>() {
        Some((compressed, sum)) if crc32(compressed) == u32::from_le_bytes(*sum) => Ok(compressed),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "it is cut off or damaged")),
    }
}

fn extract(compressed: &[u8], folder: &Path) -> io::Result<()> {
    let mut tar = Command::new("tar")
        .args(["--extract", "--file", "-", "--directory"])
        .arg(folder)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("tar does not start: {error}")))?;
    let written = tar.stdin.take().map_or(Ok(()), |mut to| decompress(compressed, &mut to));
    let status = tar.wait()?;
    match written {
        // tar ends once it has seen the end of the archive, and what pads it may not have been written by then: how tar ended is what counts.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ if status.success() => Ok(()),
        _ => Err(io::Error::other(format!("tar has ended with {status}"))),
    }
}

fn decompress(compressed: &[u8], to: &mut impl Write) -> io::Result<()> {
    let mut from = Decompressor::new(compressed, CHUNK);
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(()),
            count => to.write_all(&chunk[..count])?,
        }
    }
}

/// That of gzip.
fn crc32(bytes: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |sum, _| if sum & 1 == 1 { 0xedb8_8320 ^ (sum >> 1) } else { sum >> 1 })
    });
    !bytes.iter().fold(!0, |sum, &byte| table[usize::from(sum as u8 ^ byte)] ^ (sum >> 8))
}
