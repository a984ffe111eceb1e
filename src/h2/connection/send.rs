//! Bytes to the peer: control frames first, then credit, then DATA of each stream in turn.

use super::super::frame;
use super::super::stream::{Local, Remote};
use super::state::{Connection, Event, StreamId};

impl Connection {
    /// Appends what is to be sent now: about `room` bytes of DATA at most, and all control frames. Nothing is appended
    /// when nothing can be sent. Call it again once all of it was written, not before: bytes of a stream stay in its
    /// queue, where they count, until they can go.
    pub fn output(&mut self, out: &mut Vec<u8>, room: usize) {
        self.write_credit();
        if out.is_empty() {
            std::mem::swap(out, &mut self.control);
        } else {
            out.append(&mut self.control);
        }
        self.answers = 0;
        if self.fault.is_some() {
            return;
        }
        if std::mem::take(&mut self.windows_changed) {
            let waiting: Vec<u32> =
                self.streams.iter().filter(|(_, s)| s.has_output() && !s.in_line).map(|(id, _)| *id).collect();
            waiting.into_iter().for_each(|id| self.line_up(id));
        }
        // Control frames that are appended meanwhile (the trailers of a stream, say) follow its DATA.
        while out.len() < room
            && let Some(id) = self.line.pop_front()
        {
            if !self.write_turn(id, out) {
                break;
            }
            out.append(&mut self.control);
        }
    }

    /// Whether [`Connection::output`] would have something, as far as can be said without asking it.
    pub fn has_output(&self) -> bool {
        let window = self.send_window > 0 || self.windows_changed;
        !self.control.is_empty()
            || !self.credit.is_empty()
            || self.owes_credit()
            || self.fault.is_none() && (self.windows_changed || !self.line.is_empty() && window)
    }

    /// One frame of a stream at most, and its end. Returns whether others may go on: the connection has a window.
    fn write_turn(&mut self, id: u32, out: &mut Vec<u8>) -> bool {
        let (connection_window, first) = (self.send_window, self.first_send_window);
        let low = self.options.queue / 2;
        // A stream that was reset leaves its place in the line.
        let Some(stream) = self.streams.get_mut(&id) else { return true };
        if stream.queued_bytes > 0 && connection_window <= 0 {
            self.line.push_front(id);
            return false;
        }
        stream.in_line = false;
        let window = usize::try_from(connection_window.min(stream.send_window + first)).unwrap_or(0);
        let length = stream.queued_bytes.min(window).min(frame::MAX_PAYLOAD);
        let last = stream.queued_bytes == length;
        let ends = last && matches!(stream.local, Local::Ending(None));
        if length > 0 || ends {
            frame::head(out, frame::DATA, if ends { frame::END_STREAM } else { 0 }, id, length);
            let mut left = length;
            while left > 0
                && let Some(chunk) = stream.queued.front_mut()
            {
                let taken = left.min(chunk.len());
                out.extend_from_slice(chunk.get(..taken).unwrap_or_default());
                chunk.advance(taken);
                left -= taken;
                if chunk.is_empty() {
                    stream.queued.pop_front();
                }
            }
            stream.queued_bytes -= length;
            stream.send_window -= length as i64;
            self.send_window -= length as i64;
        }
        if stream.full && stream.queued_bytes <= low {
            stream.full = false;
            self.events.push_back(Event::Writable(StreamId(id)));
        }
        if !last {
            self.line_up(id);
        } else if let Local::Ending(trailers) = &mut stream.local {
            let trailers = trailers.take();
            stream.local = Local::Ended;
            if let Some(trailers) = trailers {
                self.write_headers(id, &trailers, true);
            }
            self.answered(id);
        }
        true
    }

    /// Half a window is returned at a time: few frames, and the peer never comes to a stop for want of credit.
    pub(super) fn owes_credit(&self) -> bool {
        self.owed >= self.options.window / 2
    }

    fn write_credit(&mut self) {
        if self.fault.is_some() {
            return;
        }
        if self.owes_credit() {
            frame::number(&mut self.control, frame::WINDOW_UPDATE, 0, self.owed as u32);
            self.receive_window += std::mem::take(&mut self.owed);
        }
        for id in std::mem::take(&mut self.credit) {
            if let Some(stream) = self.streams.get_mut(&id)
                && !matches!(stream.remote, Remote::Ended(_))
                && stream.owed > 0
            {
                frame::number(&mut self.control, frame::WINDOW_UPDATE, id, stream.owed as u32);
                stream.receive_window += std::mem::take(&mut stream.owed);
            }
        }
    }
}
