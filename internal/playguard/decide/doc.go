// Package decide says what is to be done about the playgrounds of a marquee,
// given their records and one look at it. It is pure: the time, the numbers
// and the order come with the input, so every decision can be replayed. Steps
// are data; others carry them out, and check again when they do.
//
// Rules are ordered tables, one per state: the first rule that applies
// decides. A rule either acts or is refused by exactly one guard. Refusing to
// act is a normal outcome.
package decide
