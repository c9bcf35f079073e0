// Command testsum reads `go test -json` and prints what a person wants to see
// of it: go test's own line for each package, the whole output of each test
// that failed or was skipped, the slowest tests and a closing count. It exits
// 1 if anything failed, if nothing ran and, with -noskip, if anything was
// skipped.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is one line of `go test -json`, as documented by cmd/test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build event
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

type result struct {
	name    string
	elapsed float64
}

// report gathers what happened.
type report struct {
	out                     io.Writer
	output                  map[string][]string // by package and test, until it ends
	passed, failed, skipped int
	packages, badPackages   int
	tests                   []result
	skips                   []string
}

func main() {
	noskip := flag.Bool("noskip", false, "fail if a test was skipped")
	title := flag.String("title", "tests", "name of the run in the closing lines")
	flag.Parse()

	r := &report{out: os.Stdout, output: map[string][]string{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
		os.Exit(1)
	}
	if !r.summary(*title, *noskip) {
		os.Exit(1)
	}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				r.add(e)
			} else {
				fmt.Fprintf(r.out, "%s", line) // go's own complaints are not JSON
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.print(key, e)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(key, e)
		} else {
			r.endTest(key, e)
		}
	}
}

// print keeps the output of a test for later and shows go test's own line for
// a package at once.
func (r *report) print(key string, e event) {
	if e.Test == "" && packageLine(e.Output) {
		fmt.Fprint(r.out, e.Output)
		return
	}
	if !strings.HasPrefix(e.Output, "=== ") { // RUN, PAUSE, CONT: the events say it
		r.output[key] = append(r.output[key], e.Output)
	}
}

func packageLine(s string) bool {
	for _, start := range []string{"ok  \t", "FAIL\t", "?   \t"} {
		if strings.HasPrefix(s, start) {
			return true
		}
	}
	return false
}

func (r *report) endTest(key string, e event) {
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
	case "skip":
		r.skipped++
		r.skips = append(r.skips, e.Package+" "+e.Test)
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
	}
	delete(r.output, key)
	if !strings.Contains(e.Test, "/") {
		r.tests = append(r.tests, result{e.Package + " " + e.Test, e.Elapsed})
	}
}

// endPackage also prints what belongs to no finished test: a panic, a race or
// a time-out ends the process before its tests are reported.
func (r *report) endPackage(key string, e event) {
	r.packages++
	if e.Action == "fail" {
		r.badPackages++
		var left []string
		for k := range r.output {
			if strings.HasPrefix(k, e.Package+" ") && k != key {
				left = append(left, k)
			}
		}
		slices.Sort(left)
		for _, k := range append(left, key) {
			fmt.Fprint(r.out, strings.Join(r.output[k], ""))
			delete(r.output, k)
		}
	}
	delete(r.output, key)
}

// summary prints the closing lines and says whether the run is good.
func (r *report) summary(title string, noskip bool) bool {
	slices.SortStableFunc(r.tests, func(a, b result) int {
		switch {
		case a.elapsed > b.elapsed:
			return -1
		case a.elapsed < b.elapsed:
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	for i, t := range r.tests {
		if i == 5 || t.elapsed < 1 {
			break
		}
		fmt.Fprintf(r.out, "slow: %6.1f s  %s\n", t.elapsed, t.name)
	}
	for _, s := range r.skips {
		fmt.Fprintf(r.out, "skipped: %s\n", s)
	}
	fmt.Fprintf(r.out, "%s: %d packages, %d of them failed\n", title, r.packages, r.badPackages)
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	if r.passed+r.failed == 0 {
		fmt.Fprintln(r.out, "no test ran")
		return false
	}
	return r.failed == 0 && r.badPackages == 0 && (!noskip || r.skipped == 0)
}
