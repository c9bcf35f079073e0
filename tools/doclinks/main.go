// Command doclinks checks that every relative link in the tree's Markdown
// leads to a file, and that every page under docs is reached from its folder's
// README. It prints each breach and exits 1.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	n, bad, err := check(".")
	if err != nil {
		fmt.Fprintf(os.Stderr, "doclinks: %v\n", err)
		os.Exit(1)
	}
	for _, b := range bad {
		fmt.Printf("doclinks: %s\n", b)
	}
	if len(bad) > 0 {
		os.Exit(1)
	}
	fmt.Printf("doclinks: %d pages\n", n)
}

var linkPattern = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func check(root string) (pages int, bad []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || slices.Contains([]string{"testdata", "node_modules", "build", "bin", "data", "shared"}, name)) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		pages++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		bad = append(bad, broken(path, string(text))...)
		if dir := filepath.Dir(path); filepath.Base(path) != "README.md" && strings.HasPrefix(path, filepath.Join(root, "docs")+"/") {
			index, err := os.ReadFile(filepath.Join(dir, "README.md"))
			if err != nil || !strings.Contains(string(index), "]("+filepath.Base(path)) {
				bad = append(bad, path+" is not linked from the README.md beside it")
			}
		}
		return nil
	})
	return pages, bad, err
}

// broken lists the links of a page that lead nowhere. Links with a scheme and
// anchors within the page are not followed.
func broken(path, text string) []string {
	var bad []string
	for _, m := range linkPattern.FindAllStringSubmatch(text, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), target)); err != nil {
			bad = append(bad, fmt.Sprintf("%s links to %s, which does not exist", path, m[1]))
		}
	}
	return bad
}
