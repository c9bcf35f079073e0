package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

type layer struct {
	name     string
	units    []string
	anything bool // may import whatever it likes
	pure     bool // a decider: no clock, context, logger, goroutine
	adapters bool // imported by cmd and tests alone
	testing  bool // imported by tests alone
	stdlib   bool // imports the standard library only
}

// ban forbids packages even as indirect dependencies.
type ban struct {
	from, what []string
	why        string
}

// gopkg is the part of `go list -json` that matters here.
type gopkg struct {
	ImportPath string
	Dir        string
	Module     *struct{ Path string }
	Standard   bool
	GoFiles    []string
	Imports    []string // not those of test files
	Deps       []string
	Error      *struct{ Err string }
}

// list runs go list in dir. Packages that do not compile are listed too.
func list(dir string) ([]gopkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Module,Standard,GoFiles,Imports,Deps,Error", "./...") //nolint:noctx // a tool: ^C ends both
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	var all []gopkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p gopkg
		if err := dec.Decode(&p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// covers says whether a unit's pattern matches a path, and how closely.
func covers(pattern, path string) (length int, ok bool) {
	base, below := strings.CutSuffix(pattern, "/...")
	if path == base || below && strings.HasPrefix(path, base+"/") {
		return len(base), true
	}
	return 0, false
}

// place finds the row and unit of a path inside the module, and -1 if it has none.
func place(path string) (row int, unit string) {
	row, best := -1, -1
	for i, l := range table {
		for _, u := range l.units {
			if n, ok := covers(u, path); ok && n > best {
				row, unit, best = i, u, n
			}
		}
	}
	return row, unit
}

// check lists every import that the table does not allow, sorted.
func check(module string, pkgs []gopkg) []string {
	var bad []string
	say := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	local := func(path string) (string, bool) { return strings.CutPrefix(path, module+"/") }

	for _, p := range pkgs {
		from, ok := local(p.ImportPath)
		if !ok {
			continue
		}
		row, unit := place(from)
		if row < 0 {
			say("%s is not in the layer table; give it a place in tools/layers/table.go", from)
			continue
		}
		for _, imp := range p.Imports {
			to, ours := local(imp)
			if !ours {
				if table[row].stdlib && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
					say("%s imports %s; it may use the standard library only", from, imp)
				}
				if table[row].pure && impure[imp] {
					say("%s imports %s; a decider sees only its input", from, imp)
				}
				continue
			}
			if why := refuse(row, unit, to); why != "" {
				say("%s imports %s: %s", from, to, why)
			}
		}
		bad = append(bad, reach(from, p.Deps, local)...)
	}
	slices.Sort(bad)
	return bad
}

// refuse says why a package of (row, unit) may not import to; empty if it may.
func refuse(row int, unit, to string) string {
	toRow, toUnit := place(to)
	switch {
	case toRow < 0:
		return "which is not in the layer table"
	case toUnit == unit || table[row].anything:
		return ""
	case table[toRow].testing && !table[row].testing:
		return "only tests may"
	case table[toRow].adapters && !table[row].testing:
		return "an adapter is imported by cmd and tests alone"
	case toRow == row:
		return fmt.Sprintf("siblings (%s) do not import each other", table[row].name)
	case toRow < row:
		return fmt.Sprintf("imports go down only, from %q to %q is up", table[row].name, table[toRow].name)
	}
	return ""
}

func reach(from string, deps []string, local func(string) (string, bool)) []string {
	var bad []string
	for _, b := range never {
		if !matches(b.from, from) {
			continue
		}
		for _, dep := range deps {
			if to, ours := local(dep); ours && matches(b.what, to) {
				bad = append(bad, fmt.Sprintf("%s reaches %s: %s", from, to, b.why))
			}
		}
	}
	return bad
}

func matches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { _, ok := covers(p, path); return ok })
}

// pure reads the source of each decider and lists every use of a clock and
// every goroutine in it.
func pure(module string, pkgs []gopkg) ([]string, error) {
	var bad []string
	for _, p := range pkgs {
		path, ok := strings.CutPrefix(p.ImportPath, module+"/")
		if row, _ := place(path); !ok || row < 0 || !table[row].pure {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			for _, use := range impureUses(f) {
				bad = append(bad, fmt.Sprintf("%s/%s:%d: %s in a decider", path, name, fset.Position(use.at).Line, use.what))
			}
		}
	}
	slices.Sort(bad)
	return bad, nil
}

type use struct {
	what string
	at   token.Pos
}

func impureUses(f *ast.File) []use {
	clock := ""
	for _, imp := range f.Imports {
		if imp.Path.Value == `"time"` {
			clock = "time"
			if imp.Name != nil {
				clock = imp.Name.Name
			}
		}
	}
	var uses []use
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			uses = append(uses, use{"a goroutine", n.Pos()})
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && clock != "" && x.Name == clock && clockFuncs[n.Sel.Name] {
				uses = append(uses, use{"time." + n.Sel.Name, n.Pos()})
			}
		}
		return true
	})
	return uses
}
