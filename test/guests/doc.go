// Package guests boots real machines for tests, in a world of their own: a
// namespace that plays the host, and one beyond it that has every address guests
// must not reach, so that a refusal is a rule and no missing route.
package guests
