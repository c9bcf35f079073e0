//go:build race

package reconcile_test

// fleets is how many each property generates in an ordinary run. The package
// has no goroutines, so under the race detector, which makes it twenty times as
// slow, fewer do.
const fleets = 250
