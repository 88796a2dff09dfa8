//! Times of tasks, as clients read them.

/// The longest that a client is asked to wait between two polls, and the shortest. Claude Code takes 250 ms to 30 s.
const POLL_MS: (u64, u64) = (250, 5_000);
/// A task is polled each time that its age has grown by an eighth.
const POLLS_PER_AGE: u64 = 8;

const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400 * SECOND_MS;
/// The last millisecond that has four digits for its year.
const MAX_UNIX_MS: u64 = 253_402_300_799_999;

/// How long a client is asked to wait before it polls a task of this age again: never 0 (T-11).
pub(super) fn poll_interval_ms(age_ms: u64) -> u64 {
    (age_ms / POLLS_PER_AGE).clamp(POLL_MS.0, POLL_MS.1)
}

/// A time as ISO 8601 writes it, in whole milliseconds of UTC (T-11).
pub(super) fn iso8601(unix_ms: u64) -> String {
    let unix_ms = unix_ms.min(MAX_UNIX_MS);
    let (days, in_day) = (unix_ms / DAY_MS, unix_ms % DAY_MS);
    let (year, month, day) = date(days);
    let (hour, minute) = (in_day / 3_600_000, in_day / 60_000 % 60);
    let (second, ms) = (in_day / SECOND_MS % 60, in_day % SECOND_MS);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day, so many days after 1970-01-01. Years are counted from March, so that a leap day is the last of its
/// year, and in cycles of 400 years, which all have as many days.
fn date(days: u64) -> (u64, u64, u64) {
    const CYCLE_DAYS: u64 = 146_097;
    const TO_MARCH_0000: u64 = 719_468;
    let days = days + TO_MARCH_0000;
    let (cycle, of_cycle) = (days / CYCLE_DAYS, days % CYCLE_DAYS);
    let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + 400 * cycle, if month < 10 { month + 3 } else { month - 9 });
    (year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_11_times_are_written_in_whole_milliseconds_of_utc() {
        for (unix_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_795_832_278_048, "2026-11-28T02:17:58.048Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (u64::MAX, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(iso8601(unix_ms), text);
        }
    }

    #[test]
    fn t_11_the_wait_between_polls_grows_within_what_clients_take() {
        let waits = [0, 2_000, 8_000, 40_000, u64::MAX].map(poll_interval_ms);
        assert_eq!(waits, [250, 250, 1_000, 5_000, 5_000]);
    }
}
