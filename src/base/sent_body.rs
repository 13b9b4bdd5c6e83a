//! The body of an answer that contains a message. The client's quota counts the message's memory until it is sent.

use super::fair_quota::Reservation;
use axum::body::Bytes;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long sending may take. The answer to a slower client is cut off, so that other clients get its share of the memory.
const SENDING: Duration = Duration::from_mins(10);
/// How many bytes are given to a connection at once.
const PIECE: usize = 16 << 10;

/// A body that is sent in pieces. hyper drops a body once it has its last frame, and keeps that frame until it is written. With a
/// body of one frame, hyper would keep the whole message for a client that does not read. The message's share of the memory would
/// already belong to another client.
///
/// So hyper gets each piece only once it has written the previous one. The message keeps its share of the memory until the last
/// piece is taken, the connection is closed, or `SENDING` is over.
pub(crate) struct SentBody {
    left: u64,
    pieces: mpsc::Receiver<Bytes>,
}

impl SentBody {
    pub(crate) fn begin(mut message: Vec<u8>, mut share: Reservation) -> Self {
        let (give, pieces) = mpsc::channel(1);
        message.shrink_to_fit();
        share.becomes(message.len());
        let left = message.len() as u64;
        tokio::spawn(async move {
            let all = async {
                for piece in message.chunks(PIECE) {
                    // A `Bytes` that refers to the message would keep all of it in memory.
                    if give.send(Bytes::copy_from_slice(piece)).await.is_err() {
                        break;
                    }
                }
            };
            if timeout(SENDING, all).await.is_err() {
                tracing::info!(within = ?SENDING, "a message that is handed out was not read, and is cut off");
            }
            drop(share);
        });
        Self { left, pieces }
    }
}

impl hyper::body::Body for SentBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match ready!(self.pieces.poll_recv(context)) {
            Some(piece) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            None if self.left > 0 => Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into()))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::fair_quota::FairQuota;
    use axum::body::{Body, to_bytes};
    use hyper::body::Body as _;
    use std::future::poll_fn;

    const TOKEN: &str = "crm";
    /// A token may use half of this memory: enough for one `message(9)`, and no more.
    const MEMORY: usize = 2 * (9 * PIECE + 1);

    /// The runtime's clock stands while any task can run.
    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(future)
    }

    fn message(pieces: usize) -> Vec<u8> {
        (0..pieces * PIECE + 1).map(|number| (number % 251) as u8).collect()
    }

    #[test]
    fn a_message_comes_whole_and_its_share_is_given_back() {
        run(async {
            for message in [Vec::new(), b"x".to_vec(), message(9)] {
                let shares = FairQuota::of(MEMORY);
                let sent = SentBody::begin(message.clone(), shares.take(TOKEN, 1).unwrap());
                assert_eq!(sent.size_hint().exact(), Some(message.len() as u64));
                assert_eq!(to_bytes(Body::new(sent), usize::MAX).await.unwrap(), message);
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(shares.take(TOKEN, 1).is_some());
            }
        });
    }

    #[test]
    fn what_is_not_read_keeps_its_share_for_so_long_and_is_cut_off_then() {
        run(async {
            let shares = FairQuota::of(MEMORY);
            let mut sent = SentBody::begin(message(9), shares.take(TOKEN, 1).unwrap());
            let mut next = async || poll_fn(|context| Pin::new(&mut sent).poll_frame(context)).await.unwrap();
            next().await.unwrap();
            tokio::time::sleep(SENDING - Duration::from_secs(1)).await;
            assert!(shares.take(TOKEN, 1).is_none());
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(shares.take(TOKEN, 1).is_some());
            // Only the pieces that were in transit when the time was over.
            next().await.unwrap();
            assert_eq!(next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn who_has_gone_leaves_the_share_to_others() {
        run(async {
            let shares = FairQuota::of(MEMORY);
            let sent = SentBody::begin(message(9), shares.take(TOKEN, 1).unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(shares.take(TOKEN, 1).is_none());
            drop(sent);
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(shares.take(TOKEN, 1).is_some());
        });
    }
}
