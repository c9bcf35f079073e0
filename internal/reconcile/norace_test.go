//go:build !race

package reconcile_test

// fleets is how many each property generates in an ordinary run: 10,000 in all.
const fleets = 2500
