//go:build race

package loop_test

// The size of a day. The race detector makes it ten times as long, so there are
// fewer marquees with as many playgrounds each.
const (
	dayMarquees    = 3
	dayHasAll      = false // every end that there is comes to somebody
	dayPlaygrounds = 75
)
