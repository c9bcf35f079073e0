// Command shape holds the caps of the house style over the whole tree: how
// long a function, file and package may be, how wide a type and an interface,
// and that every package has a doc comment. It prints the distribution and, if
// a cap is broken, each place, and exits 1.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	root := flag.String("root", ".", "directory to measure")
	flag.Parse()
	t, err := measure(*root)
	if err != nil {
		fmt.Fprintf(os.Stderr, "shape: %v\n", err)
		os.Exit(1)
	}
	t.print(os.Stdout)
	if len(t.problems) > 0 {
		os.Exit(1)
	}
}

func (t *tree) print(w io.Writer) {
	for _, row := range []struct {
		name string
		all  []sized
	}{
		{"file lines", t.files},
		{"function lines", t.funcs},
		{"package lines", t.packages},
		{"type methods", t.types},
		{"interface methods", t.ifaces},
	} {
		if len(row.all) == 0 {
			continue
		}
		slices.SortFunc(row.all, func(a, b sized) int {
			if a.n != b.n {
				return a.n - b.n
			}
			return strings.Compare(a.what, b.what)
		})
		last := row.all[len(row.all)-1]
		fmt.Fprintf(w, "shape: %-18s %5d of them, p50 %d, p90 %d, max %d (%s)\n", row.name,
			len(row.all), quantile(row.all, 50), quantile(row.all, 90), last.n, last.what)
	}
	for _, p := range t.problems {
		fmt.Fprintf(w, "shape: %s\n", p)
	}
}

// quantile is the nearest-rank percentile of a sorted list.
func quantile(s []sized, percent int) int {
	return s[(len(s)*percent+99)/100-1].n
}
