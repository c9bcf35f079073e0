// Command layers holds the dependency rule: imports go down the layer table
// only, siblings do not import each other, adapters are known to cmd and tests
// alone, the far side reaches nothing of the control plane, and deciders have
// no clock, context, logger or goroutine. It prints each breach and exits 1.
package main

import (
	"fmt"
	"os"
)

// module is the import path of this tree.
const module = "github.com/fusevm/fuse"

func main() {
	n, bad, err := run(".")
	if err != nil {
		fmt.Fprintf(os.Stderr, "layers: %v\n", err)
		os.Exit(1)
	}
	for _, b := range bad {
		fmt.Printf("layers: %s\n", b)
	}
	if len(bad) > 0 {
		os.Exit(1)
	}
	fmt.Printf("layers: %d packages in their places\n", n)
}

// run checks the tree that dir is in.
func run(dir string) (packages int, bad []string, err error) {
	pkgs, err := list(dir)
	if err != nil {
		return 0, nil, err
	}
	uses, err := pure(module, pkgs)
	if err != nil {
		return 0, nil, err
	}
	return len(pkgs), append(check(module, pkgs), uses...), nil
}
