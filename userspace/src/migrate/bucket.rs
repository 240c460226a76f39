//! A token bucket whose tokens are bytes.

use std::time::{Duration, Instant};

/// Gives out a rate on average and a burst at once. A draw larger than the burst waits for a full bucket and leaves a
/// debt, so that nothing is too large ever to pass.
#[derive(Debug)]
pub struct Bucket {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket of `burst` bytes, refilled at `rate` bytes a second; neither may be 0.
    pub fn new(rate: u64, burst: u64, now: Instant) -> Self {
        let burst = burst.max(1) as f64;
        Self { rate: rate.max(1) as f64, burst, tokens: burst, at: now }
    }

    /// Draws `bytes` if they are there; otherwise says for how long to wait before asking again.
    pub fn draw(&mut self, bytes: u64, now: Instant) -> Result<(), Duration> {
        let bytes = bytes as f64;
        self.tokens = (self.tokens + self.rate * (now - self.at).as_secs_f64()).min(self.burst);
        self.at = now;
        let short = bytes.min(self.burst) - self.tokens;
        // Less than a byte short is a rounding error, not a reason to sleep for a nanosecond and ask again.
        if short < 1.0 {
            self.tokens -= bytes;
            return Ok(());
        }
        Err(Duration::from_secs_f64((short / self.rate).min(3600.0)))
    }

    /// Puts back what was drawn and not used.
    pub fn give_back(&mut self, bytes: u64) {
        self.tokens = (self.tokens + bytes as f64).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_on_average_and_a_large_draw_passes() {
        let start = Instant::now();
        for draw in [1, 4096, 1 << 20, 64 << 20] {
            let mut bucket = Bucket::new(10 << 20, 2 << 20, start);
            let (mut now, mut drawn) = (start, 0);
            while drawn < 100 << 20 {
                match bucket.draw(draw, now) {
                    Ok(()) => drawn += draw,
                    Err(wait) => now += wait,
                }
                // Draws of one byte would take all day; the arithmetic is the same.
                if draw == 1 && drawn > 1000 {
                    break;
                }
            }
            let allowed = (2 << 20) as f64 + (10 << 20) as f64 * (now - start).as_secs_f64();
            assert!(drawn as f64 <= allowed + draw as f64, "{draw}");
            assert!(draw == 1 || drawn as f64 >= allowed * 0.5, "{draw}");
        }
    }

    #[test]
    fn a_rate_of_zero_is_slow_and_not_never() {
        let start = Instant::now();
        let mut bucket = Bucket::new(0, 0, start);
        assert!(bucket.draw(4096, start).is_ok());
        assert!(bucket.draw(1, start).is_err_and(|wait| wait > Duration::ZERO && wait <= Duration::from_secs(3600)));
        bucket.give_back(4096);
        assert!(bucket.draw(1, start).is_ok());
    }
}
