//go:build !race

package loop_test

// The size of a day.
const (
	dayMarquees    = 8
	dayHasAll      = true // every end that there is comes to somebody
	dayPlaygrounds = 200
)
