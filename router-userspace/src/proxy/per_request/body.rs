//! Bodies on their way through: counted, and carried only as fast as the other side takes them.
//!
//! Both sides' libraries hold a bounded buffer and ask for the next frame when it is written, so memory does not grow with a body.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

use super::accounting::Exchange;

/// What an instance gets behind the head.
#[derive(Debug)]
pub(super) struct RequestBody {
    incoming: Option<Incoming>,
    bytes: Arc<AtomicU64>,
}

impl RequestBody {
    /// `bytes` grows with what has passed.
    pub(super) fn new(incoming: Incoming, bytes: Arc<AtomicU64>) -> Self {
        Self { incoming: Some(incoming).filter(|incoming| !incoming.is_end_stream()), bytes }
    }

    pub(super) fn none(bytes: Arc<AtomicU64>) -> Self {
        Self { incoming: None, bytes }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = Pin::new(incoming).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            self.bytes.fetch_add(frame.data_ref().map_or(0, Bytes::len) as u64, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// What the client gets behind the head.
#[derive(Debug)]
pub(super) enum ResponseBody {
    /// The router's own words.
    Own(Option<Bytes>),
    /// The instance's, and what has to be done when they end.
    Carried { incoming: Incoming, exchange: Option<Box<Exchange>> },
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Carried { incoming, exchange } => {
                let frame = Pin::new(&mut *incoming).poll_frame(cx);
                match &frame {
                    Poll::Ready(Some(Ok(frame))) => {
                        if let Some(exchange) = exchange {
                            exchange.passed(frame.data_ref().map_or(0, Bytes::len));
                        }
                        // Nobody asks for more after the last frame.
                        if incoming.is_end_stream() {
                            finish(exchange);
                        }
                    }
                    Poll::Ready(None) => finish(exchange),
                    Poll::Ready(Some(Err(_))) => {
                        if let Some(exchange) = exchange.take() {
                            exchange.cut_short();
                        }
                    }
                    Poll::Pending => {}
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(text) => text.is_none(),
            Self::Carried { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Self::Carried { incoming, .. } => incoming.size_hint(),
        }
    }
}

fn finish(exchange: &mut Option<Box<Exchange>>) {
    if let Some(exchange) = exchange.take() {
        exchange.finish();
    }
}
