//! The metrics over HTTP: `GET /metrics`, one request a connection, which is all that a scraper needs.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::{board::Board, server::Event};
use crate::observe::prometheus;

/// The longest request, in bytes.
const MAX_REQUEST: usize = 8 << 10;
/// Scrapes at a time; more wait.
const AT_A_TIME: usize = 8;
/// A request is read, and its answer taken, within this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Listens for scrapers.
///
/// # Errors
/// The address cannot be had.
pub(super) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves what the board shows, for ever.
pub(super) async fn serve(listener: TcpListener, board: Arc<Board>, events: mpsc::Sender<Event>) {
    let room = Arc::new(Semaphore::new(AT_A_TIME));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (board, events) = (Arc::clone(&board), events.clone());
                tokio::spawn(async move {
                    if !timeout(PATIENCE, answer(stream, &board, &events)).await.is_ok_and(|answered| answered.is_ok())
                    {
                        tracing::debug!("a scraper's connection ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a scraper cannot be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, board: &Board, events: &mpsc::Sender<Event>) -> io::Result<()> {
    let mut request = Vec::new();
    // The head alone matters, and of that the first line.
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() >= MAX_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return write(&mut stream, "400 Bad Request", "text/plain", "not a request\n").await;
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    match line {
        b"GET /metrics HTTP/1.1" | b"GET /metrics HTTP/1.0" => match prometheus::text(&board.look(events).await.status)
        {
            Ok(text) => write(&mut stream, "200 OK", prometheus::CONTENT_TYPE, &text).await,
            Err(_) => write(&mut stream, "500 Internal Server Error", "text/plain", "no metrics\n").await,
        },
        line if line.starts_with(b"GET ") => {
            write(&mut stream, "404 Not Found", "text/plain", "the metrics are at /metrics\n").await
        }
        _ => write(&mut stream, "405 Method Not Allowed", "text/plain", "GET only\n").await,
    }
}

async fn write(stream: &mut TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
