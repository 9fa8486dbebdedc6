//! Percent-encoding as signature version 4 wants it (RFC 3986: all but the unreserved characters), and as listings come.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// All but the unreserved characters of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same for paths, whose slashes stay.
const PATH: &AsciiSet = &RESERVED.remove(b'/');

/// A key as the path of a request, or of the header that names a source. Slashes stay.
pub fn path(key: &str) -> String {
    utf8_percent_encode(key, PATH).to_string()
}

/// A name or a value of a query.
pub fn query(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// The parameters of a query, encoded, in the order that a signature wants.
pub fn sorted(parameters: &[(&str, &str)]) -> String {
    let mut pairs: Vec<(String, String)> =
        parameters.iter().map(|(name, value)| (query(name), query(value))).collect();
    pairs.sort();
    let mut text = String::new();
    for (name, value) in &pairs {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        text.push_str(value);
    }
    text
}

/// What a listing with `encoding-type=url` means. Stores differ in how they write a space: as '+' (then a plus is `%2B`), or as `%20` (then
/// a plus may stand for itself); `plus` says that it is the first. `None`: not UTF-8, so no key that this crate can speak of.
pub fn decoded(text: &str, plus: bool) -> Option<String> {
    let spaced = if plus { text.replace('+', " ") } else { text.to_owned() };
    percent_decode_str(&spaced).decode_utf8().ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_unreserved_characters_are_encoded() {
        assert_eq!(path("a b/c+d~e_f-g.h/ü&?#%"), "a%20b/c%2Bd~e_f-g.h/%C3%BC%26%3F%23%25");
        assert_eq!(query("a/b=c d"), "a%2Fb%3Dc%20d");
    }

    #[test]
    fn a_query_is_sorted_by_what_is_sent() {
        assert_eq!(
            sorted(&[("prefix", "a/b"), ("list-type", "2"), ("delimiter", "/")]),
            "delimiter=%2F&list-type=2&prefix=a%2Fb"
        );
        assert_eq!(sorted(&[("uploads", "")]), "uploads=");
    }

    #[test]
    fn listings_are_decoded_in_both_manners() {
        assert_eq!(decoded("a+b%2Bc%0Ad", true).as_deref(), Some("a b+c\nd"));
        assert_eq!(decoded("a%20b+c", false).as_deref(), Some("a b+c"));
        assert_eq!(decoded("%FF", true), None);
    }
}
