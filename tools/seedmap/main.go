// Command seedmap checks docs/reference/seed-map.md: every exported name and
// field of the seed's package has one row there, and each place that a row
// names exists in this tree. It prints how much of the seed has a place.
package main

import (
	"fmt"
	"os"
)

func main() {
	counts, bad, err := run(".")
	if err != nil {
		fmt.Fprintf(os.Stderr, "seedmap: %v\n", err)
		os.Exit(1)
	}
	for _, b := range bad {
		fmt.Printf("seedmap: %s\n", b)
	}
	if len(bad) > 0 {
		os.Exit(1)
	}
	fmt.Printf("seedmap: %d names: %d have a place, %d come later, %d have no function here\n",
		counts.total(), counts.placed, counts.later, counts.none)
}
