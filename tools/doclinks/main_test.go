package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"README.md":         "[docs](docs/README.md) [web](https://example.org/x) [here](#below)",
		"docs/README.md":    "[a](a.md#part) [up](../README.md)",
		"docs/a.md":         "[gone](gone.md)",
		"docs/b.md":         "alone",
		"testdata/x.md":     "[gone](gone.md)",
		"node_modules/y.md": "[gone](gone.md)",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n, bad, err := check(root)
	if err != nil || n != 4 || len(bad) != 2 {
		t.Fatalf("%d pages, %q, %v; want 4 pages and 2 breaches", n, bad, err)
	}
	if !strings.Contains(bad[0], "docs/a.md links to gone.md") || !strings.Contains(bad[1], "docs/b.md is not linked") {
		t.Errorf("%q", bad)
	}
}

func TestThisTree(t *testing.T) {
	n, bad, err := check("../..")
	if err != nil {
		t.Fatal(err)
	}
	if n < 10 {
		t.Errorf("only %d pages", n)
	}
	for _, b := range bad {
		t.Error(b)
	}
}
