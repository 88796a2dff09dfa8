//! Slow readers of a store that is set back: what it lost is written again, so nobody is told that it is gone.

use tailrope_core::store::session_name;

use crate::reader::Reader;
use crate::world::World;

impl World {
    /// The store loses the last events of a stream. In half of the cases its readers have not read those events yet. These
    /// readers go on before the stream's owner hears of the loss.
    pub(crate) fn set_back(&mut self, stream: usize, by: u64) {
        let is_reading = |reader: &Reader| reader.stream == stream && reader.is_reading() && !reader.is_stalled;
        let slow: Vec<usize> = (0..self.readers.len()).filter(|at| is_reading(&self.readers[*at])).collect();
        let slow = if by % 16 < 8 { slow } else { Vec::new() };
        for at in &slow {
            self.readers[*at].is_stalled = true;
        }
        if !slow.is_empty() {
            self.count("slow readers of a store that is set back");
            (0..2).for_each(|_| self.notify(stream));
            self.run();
        }
        let (session, name) = (self.streams[stream].session, self.streams[stream].name.clone());
        self.sea().roll_back(&session_name(&*self.sessions[session].name), &name, by);
        for at in slow {
            self.readers[at].is_stalled = false;
        }
    }
}
