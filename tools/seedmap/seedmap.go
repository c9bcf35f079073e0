package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Where the page and the list of the seed's names are, from the tree's root.
const (
	pagePath  = "docs/reference/seed-map.md"
	namesPath = "tools/seedmap/testdata/names.txt"
)

// row is one line of the page's table: what the seed has, and its place here.
type row struct {
	line  int
	kind  string // const, var, func, type, field or method
	name  string // Name or Type.Name
	place string
}

type counts struct{ placed, later, none int }

func (c counts) total() int { return c.placed + c.later + c.none }

func run(root string) (counts, []string, error) {
	page, err := os.ReadFile(filepath.Join(root, pagePath))
	if err != nil {
		return counts{}, nil, err
	}
	names, err := os.ReadFile(filepath.Join(root, namesPath))
	if err != nil {
		return counts{}, nil, err
	}
	declared, err := declarations(root)
	if err != nil {
		return counts{}, nil, err
	}
	exists := func(ref string) bool {
		if strings.Contains(ref, "/") && !strings.Contains(filepath.Base(ref), ".") || strings.HasSuffix(ref, ".md") || strings.HasSuffix(ref, ".yaml") {
			_, err := os.Stat(filepath.Join(root, ref))
			return err == nil
		}
		return declared[ref]
	}
	c, bad := check(rows(string(page)), strings.Fields(strings.ReplaceAll(string(names), " ", ":")), exists)
	return c, bad, nil
}

var rowPattern = regexp.MustCompile("^\\| (const|var|func|type|field|method) \\| `([^`]+)` \\| (.+) \\|$")

// rows reads the lines of the page that are rows; everything else is prose.
func rows(page string) []row {
	var all []row
	for i, line := range strings.Split(page, "\n") {
		if m := rowPattern.FindStringSubmatch(line); m != nil {
			all = append(all, row{i + 1, m[1], m[2], m[3]})
		} else if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| what |") && !strings.HasPrefix(line, "| --- |") {
			all = append(all, row{line: i + 1}) // a row that cannot be read
		}
	}
	return all
}

var refPattern = regexp.MustCompile("`([^`]+)`")

// check compares the rows with the seed's names, given as kind:name.
func check(rows []row, names []string, exists func(ref string) bool) (counts, []string) {
	var c counts
	var bad []string
	say := func(r row, format string, args ...any) {
		bad = append(bad, fmt.Sprintf("%s:%d: ", pagePath, r.line)+fmt.Sprintf(format, args...))
	}
	seen := map[string]int{}
	for _, r := range rows {
		if r.kind == "" {
			say(r, "not a row of what, name and place")
			continue
		}
		key := r.kind + ":" + r.name
		if first, dup := seen[key]; dup {
			say(r, "%s is already on line %d", r.name, first)
		}
		seen[key] = r.line
		if !slices.Contains(names, key) {
			say(r, "the seed has no %s %s", r.kind, r.name)
		}
		refs := refPattern.FindAllStringSubmatch(r.place, -1)
		switch {
		case strings.HasPrefix(r.place, "later: "):
			c.later++
		case strings.HasPrefix(r.place, "none: "):
			c.none++
		case len(refs) == 0:
			say(r, "%s has no place: name an identifier, or say later: or none:", r.name)
		default:
			c.placed++
		}
		for _, ref := range refs {
			if !exists(ref[1]) {
				say(r, "%s does not exist", ref[1])
			}
		}
	}
	for _, n := range names {
		if _, ok := seen[n]; !ok {
			bad = append(bad, fmt.Sprintf("%s: no row for %s", pagePath, strings.Replace(n, ":", " ", 1)))
		}
	}
	return c, bad
}

// declarations are all names that the tree declares, as pkg.Name and
// pkg.Type.Member, where pkg is the path below internal (or the whole path).
func declarations(root string) (map[string]bool, error) {
	all := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (name == "testdata" || name == "build" || name == "data" || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		pkg := strings.TrimPrefix(filepath.ToSlash(rel), "internal/")
		for _, decl := range f.Decls {
			for _, name := range declared(decl) {
				all[pkg+"."+name] = true
			}
		}
		return nil
	})
	return all, err
}

func declared(decl ast.Decl) []string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []string{d.Name.Name}
		}
		t := d.Recv.List[0].Type
		if star, ok := t.(*ast.StarExpr); ok {
			t = star.X
		}
		if id, ok := t.(*ast.Ident); ok {
			return []string{id.Name + "." + d.Name.Name}
		}
	case *ast.GenDecl:
		var names []string
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			case *ast.TypeSpec:
				names = append(append(names, s.Name.Name), members(s)...)
			}
		}
		return names
	}
	return nil
}

func members(s *ast.TypeSpec) []string {
	var list *ast.FieldList
	switch t := s.Type.(type) {
	case *ast.StructType:
		list = t.Fields
	case *ast.InterfaceType:
		list = t.Methods
	default:
		return nil
	}
	var names []string
	for _, f := range list.List {
		for _, n := range f.Names {
			names = append(names, s.Name.Name+"."+n.Name)
		}
	}
	return names
}
