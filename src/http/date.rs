//! Dates from seconds since 1970, in UTC: the form that HTTP's `Date` field takes, and the parts for other forms.

use std::fmt;

/// A moment as a calendar tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    pub year: u64,
    /// From 1.
    pub month: u64,
    /// From 1.
    pub day: u64,
    pub hour: u64,
    pub minute: u64,
    pub second: u64,
    /// From 0, Sunday.
    pub weekday: u64,
}

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Days of 400 years of the Gregorian calendar, after which it repeats.
const DAYS_OF_400_YEARS: u64 = 146_097;
/// Days from the first of March of the year 0 to 1970.
const DAYS_BEFORE_1970: u64 = 719_468;

impl Civil {
    /// The moment that many seconds after the beginning of 1970.
    pub fn from_unix(seconds: u64) -> Civil {
        let days = seconds / 86_400;
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        // Years that begin in March have their odd day at the end.
        let shifted = days + DAYS_BEFORE_1970;
        let (era, day_of_era) = (shifted / DAYS_OF_400_YEARS, shifted % DAYS_OF_400_YEARS);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 {
            from_march + 3
        } else {
            from_march - 9
        };
        Civil {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day,
            hour,
            minute,
            second,
            weekday: (days + 4) % 7,
        }
    }
}

impl fmt::Display for Civil {
    /// As an HTTP field has it, RFC 9110 §5.6.7.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Civil {
            year,
            month,
            day,
            hour,
            minute,
            second,
            weekday,
        } = self;
        let (weekday, month) = (WEEKDAYS[*weekday as usize], MONTHS[*month as usize - 1]);
        write!(
            f,
            "{weekday}, {day:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_told() {
        let table = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_827_696, "Tue, 29 Feb 2000 12:34:56 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
        ];
        for (seconds, text) in table {
            assert_eq!(Civil::from_unix(seconds).to_string(), text);
        }
    }

    #[test]
    fn every_day_follows_the_day_before() {
        let mut before = Civil::from_unix(0);
        for day in 1..200_000 {
            let date = Civil::from_unix(day * 86_400);
            let next_day = date.day == before.day + 1 && date.month == before.month;
            let next_month = date.day == 1 && before.day >= 28 && date.month == before.month % 12 + 1;
            assert!(next_day || next_month, "{before:?} {date:?}");
            assert_eq!(date.weekday, (before.weekday + 1) % 7);
            before = date;
        }
    }
}
