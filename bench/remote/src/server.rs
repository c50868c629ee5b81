//! A redis-server of the measurement's own, and redis-benchmark against it.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvtide_bench::Result;

pub struct Server {
    pub port: u16,
    process: Child,
}

impl Server {
    pub fn start() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let process = command.current_dir(std::env::temp_dir()).stdout(Stdio::null()).spawn()?;
        let server = Server { port, process };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("it does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// The time that redis-benchmark takes for one `GET` of so many bytes, by the requests a second that it reports.
    pub fn benchmark(&self, bytes: usize, requests: usize, clients: usize, pipeline: usize) -> Result<Duration> {
        let numbers = [self.port as usize, bytes, requests, clients, pipeline].map(|number| number.to_string());
        let [port, bytes, requests, clients, pipeline] = numbers.each_ref().map(String::as_str);
        let output = Command::new("redis-benchmark")
            .args(["-p", port, "-t", "get", "-d", bytes, "-n", requests, "-c", clients, "-P", pipeline, "--csv"])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("\"GET\",\"")).ok_or("no line of GET")?;
        let rate: f64 = line.split('"').next().ok_or("no number")?.parse()?;
        Ok(Duration::from_secs_f64(1.0 / rate))
    }

    /// Sets the value that redis-benchmark asks for.
    pub fn prepare(&self, bytes: usize) -> Result<()> {
        let numbers = [self.port as usize, bytes].map(|number| number.to_string());
        Command::new("redis-benchmark")
            .args(["-p", &numbers[0], "-t", "set", "-d", &numbers[1], "-n", "10", "-q"])
            .output()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
