//! A proxy between client and server that changes answers as a test tells it to.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The change to the server's answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Mischief {
    /// Answers are passed on unchanged.
    None,
    /// Answers are delayed by this much.
    Delay(Duration),
    /// Half of each piece is passed on, then the connection is closed.
    Cut,
    /// The connection is closed without an answer.
    Close,
    /// This is sent instead.
    Say(Vec<u8>),
    /// This is sent instead, without end.
    Flood(Vec<u8>),
    /// Nothing is sent, and the connection stays open.
    Silence,
}

pub struct Proxy {
    pub port: u16,
    mischief: Arc<Mutex<Mischief>>,
}

impl Proxy {
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mischief = Arc::new(Mutex::new(Mischief::None));
        let told = mischief.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let told = told.clone();
                thread::spawn(move || {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
                    let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    thread::spawn(move || pass_on(from, to, &Mutex::new(Mischief::None)));
                    pass_on(server, client, &told);
                });
            }
        });
        Proxy { port, mischief }
    }

    pub fn does(&self, mischief: Mischief) {
        *self.mischief.lock().unwrap() = mischief;
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, mischief: &Mutex<Mischief>) {
    let mut piece = vec![0; 1 << 16];
    while let Ok(count) = from.read(&mut piece) {
        if count == 0 {
            break;
        }
        let told = mischief.lock().unwrap().clone();
        let passed = match &told {
            Mischief::None => to.write_all(&piece[..count]),
            Mischief::Delay(time) => {
                thread::sleep(*time);
                to.write_all(&piece[..count])
            }
            Mischief::Cut => to.write_all(&piece[..count / 2]).and(Err(std::io::ErrorKind::Other.into())),
            Mischief::Close => Err(std::io::ErrorKind::Other.into()),
            Mischief::Say(bytes) => to.write_all(bytes),
            Mischief::Flood(bytes) => loop {
                if let Err(error) = to.write_all(bytes) {
                    break Err(error);
                }
            },
            Mischief::Silence => Ok(()),
        };
        if passed.is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
