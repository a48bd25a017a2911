//! When preloads may run: on some days of the week, from one time of the day to another, in the host's time zone.
//!
//! A window opens at the first moment at which clocks show its begin or, where clocks skip that, as long after the skip as
//! the begin lies in it; and it closes likewise. So it opens exactly once on each of its days, whatever daylight saving does.

use std::time::Duration;

use jiff::Zoned;
use jiff::civil::{Date, Weekday};

/// Minutes of a day.
pub const DAY: u16 = 24 * 60;

/// Some days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days(u8);

impl Days {
    pub const NONE: Days = Days(0);
    pub const ALL: Days = Days(0b111_1111);

    /// These days and one more; Monday is 0.
    pub fn with(self, day: u8) -> Self {
        Self(self.0 | 1 << (day % 7))
    }

    pub fn contains(self, day: Weekday) -> bool {
        self.0 & 1 << day.to_monday_zero_offset() != 0
    }
}

/// Days, and a window of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub days: Days,
    /// Minutes after midnight, below [`DAY`].
    pub from: u16,
    /// Minutes after midnight, at most [`DAY`]. If it is not above `from`, the window ends on the next day.
    pub to: u16,
}

impl Schedule {
    pub const ALWAYS: Schedule = Schedule { days: Days::ALL, from: 0, to: DAY };

    /// Whether a window is open.
    pub fn is_open(&self, now: &Zoned) -> bool {
        if *self == Self::ALWAYS {
            return true;
        }
        let today = now.date();
        let opened = [today.yesterday().ok(), Some(today)];
        opened.into_iter().flatten().filter_map(|date| self.window(date, now)).any(|(open, close)| {
            let now = now.timestamp();
            open.timestamp() <= now && now < close.timestamp()
        })
    }

    /// The first moment from `now` on at which a window is open; `None` without any day.
    pub fn opening(&self, now: &Zoned) -> Option<Zoned> {
        if self.is_open(now) {
            return Some(now.clone());
        }
        let mut date = now.date();
        // The begin of today's window may have passed, so that it takes a whole week to the next.
        for _ in 0..8 {
            if let Some((open, _)) = self.window(date, now)
                && open.timestamp() > now.timestamp()
            {
                return Some(open);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// Begin and end of the window that opens on this date.
    fn window(&self, date: Date, now: &Zoned) -> Option<(Zoned, Zoned)> {
        if !self.days.contains(date.weekday()) {
            return None;
        }
        let at = |date: Date, minutes: u16| {
            let date = if minutes == DAY { date.tomorrow().ok()? } else { date };
            let minutes = minutes % DAY;
            let time = date.at((minutes / 60) as i8, (minutes % 60) as i8, 0, 0);
            time.to_zoned(now.time_zone().clone()).ok()
        };
        let end = if self.to > self.from { date } else { date.tomorrow().ok()? };
        Some((at(date, self.from)?, at(end, self.to)?))
    }
}

/// A moment of the wall clock so much later.
pub(super) fn later(now: &Zoned, by: Duration) -> Option<Zoned> {
    now.checked_add(jiff::SignedDuration::try_from(by).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    use super::*;

    /// Central European time by its rule, so that no time zone database is needed.
    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn at(day: (i16, i8, i8), hour: i8, minute: i8) -> Zoned {
        date(day.0, day.1, day.2).at(hour, minute, 0, 0).to_zoned(berlin()).unwrap()
    }

    fn minutes(hour: u16, minute: u16) -> u16 {
        hour * 60 + minute
    }

    const WEEKDAYS: Days = Days(0b001_1111);
    const MONDAY: (i16, i8, i8) = (2026, 6, 1);
    const FRIDAY: (i16, i8, i8) = (2026, 6, 5);
    const SATURDAY: (i16, i8, i8) = (2026, 6, 6);

    #[test]
    fn office_hours_are_open_on_weekdays_only() {
        let office = Schedule { days: WEEKDAYS, from: minutes(6, 0), to: minutes(20, 0) };
        for (day, hour, minute, open) in [
            (MONDAY, 5, 59, false),
            (MONDAY, 6, 0, true),
            (FRIDAY, 19, 59, true),
            (FRIDAY, 20, 0, false),
            (SATURDAY, 12, 0, false),
        ] {
            assert_eq!(office.is_open(&at(day, hour, minute)), open, "{day:?} {hour}:{minute}");
        }
        assert_eq!(office.opening(&at(FRIDAY, 20, 0)), Some(at((2026, 6, 8), 6, 0)), "over the weekend");
        assert_eq!(office.opening(&at(MONDAY, 7, 0)), Some(at(MONDAY, 7, 0)), "at once");
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_on_which_it_opens() {
        let nights = Schedule { days: WEEKDAYS, from: minutes(22, 0), to: minutes(4, 0) };
        assert!(nights.is_open(&at(SATURDAY, 3, 59)), "since Friday");
        assert!(!nights.is_open(&at(SATURDAY, 23, 0)));
        assert!(!nights.is_open(&at(MONDAY, 1, 0)), "Sunday is none of its days");
    }

    #[test]
    fn a_window_within_the_skipped_hour_opens_after_it() {
        // On 29 March 2026, 2:00 is followed by 3:00.
        let spring = (2026, 3, 29);
        let window = Schedule { days: Days::ALL, from: minutes(2, 15), to: minutes(2, 45) };
        assert!(!window.is_open(&at(spring, 1, 59)));
        assert_eq!(window.opening(&at(spring, 1, 59)), Some(at(spring, 3, 15)));
        assert!(window.is_open(&at(spring, 3, 15)) && !window.is_open(&at(spring, 3, 45)));
    }

    #[test]
    fn a_window_within_the_repeated_hour_opens_once() {
        // On 25 October 2026, the hour from 2:00 comes twice.
        let first = at((2026, 10, 25), 2, 15);
        let second = later(&first, Duration::from_secs(3_600)).unwrap();
        assert_eq!(second.datetime(), first.datetime(), "the clock shows the same");
        let window = Schedule { days: Days::ALL, from: minutes(2, 15), to: minutes(2, 45) };
        assert!(window.is_open(&first) && !window.is_open(&second));
        assert_eq!(window.opening(&second), Some(at((2026, 10, 26), 2, 15)));
    }

    proptest! {
        #[test]
        fn an_opening_is_open_and_nothing_before_it_is(
            days in 1u8..128, from in 0..DAY, to in 1..=DAY, start in 1_760_000_000i64..1_830_000_000,
            share in 0.0f64..1.0,
        ) {
            let schedule = Schedule { days: Days(days), from, to };
            let now = jiff::Timestamp::from_second(start).unwrap().to_zoned(berlin());
            let opening = schedule.opening(&now).unwrap();
            prop_assert!(schedule.is_open(&opening));
            let wait = opening.timestamp().as_second() - start;
            prop_assert!((0..=8 * 86_400).contains(&wait));
            let before = (wait as f64 * share) as i64;
            if before < wait {
                let before = jiff::Timestamp::from_second(start + before).unwrap().to_zoned(berlin());
                prop_assert!(!schedule.is_open(&before));
            }
        }
    }
}
