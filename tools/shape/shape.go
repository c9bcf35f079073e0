package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The caps. A number only stays where it is because a machine holds it.
const (
	maxFunc         = 100  // lines of a function
	maxFile         = 600  // lines of a file
	maxMethods      = 25   // declared on a type, exported or not; promoted ones do not count
	maxIface        = 5    // methods of an interface
	maxPort         = 8    // methods of a port
	maxPackage      = 2500 // lines of a package without its tests
	testRoomForSize = 2    // test files and test functions may be this much longer
)

// ports are the interfaces that whole adapters implement, by directory and
// name; each has a conformance suite and so may be wider.
var ports = map[string]bool{
	"internal/hostd/driver.Driver":      true,
	"internal/hostd/driver.Snapshotter": true,
	"internal/provider.Provider":        true,
	"internal/provider.Environment":     true,
	"internal/state.Journal":            true,
}

// sized is a thing with a size and the place to find it.
type sized struct {
	what string
	n    int
}

// tree is what was measured of all Go files under one root.
type tree struct {
	files, funcs, types, ifaces, packages []sized
	problems                              []string
}

type pkg struct {
	dir     string
	lines   int // without tests
	doc     bool
	ours    bool // has a file that is not generated
	methods map[string]int
}

// measure walks root. Generated files, testdata, hidden folders, build outputs
// and nested modules do not count.
func measure(root string) (*tree, error) {
	t := &tree{}
	pkgs := map[string]*pkg{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && skipDir(path, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		return t.file(root, filepath.ToSlash(rel), pkgs)
	})
	if err != nil {
		return nil, err
	}
	for _, p := range pkgs {
		t.pkg(p)
	}
	slices.Sort(t.problems)
	return t, nil
}

func skipDir(path, name string) bool {
	switch name {
	case "testdata", "vendor", "node_modules", "bin", "build", "data":
		return true
	}
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

func (t *tree) file(root, rel string, pkgs map[string]*pkg) error {
	src, err := os.ReadFile(filepath.Join(root, rel))
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, rel, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := filepath.ToSlash(filepath.Dir(rel))
	p := pkgs[dir]
	if p == nil {
		p = &pkg{dir: dir, methods: map[string]int{}}
		pkgs[dir] = p
	}
	if f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != "" {
		p.doc = true
	}
	if ast.IsGenerated(f) {
		return nil
	}
	p.ours = true
	room := 1
	lines := fset.File(f.Pos()).LineCount()
	if strings.HasSuffix(rel, "_test.go") {
		room = testRoomForSize
	} else {
		p.lines += lines
		t.files = append(t.files, sized{rel, lines})
	}
	t.limit(rel, "lines", lines, room*maxFile)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			t.function(fset, p, d, room)
		case *ast.GenDecl:
			t.interfaces(dir, d)
		}
	}
	return nil
}

func (t *tree) function(fset *token.FileSet, p *pkg, d *ast.FuncDecl, room int) {
	from, to := fset.Position(d.Pos()), fset.Position(d.End())
	what := fmt.Sprintf("%s:%d: func %s", from.Filename, from.Line, d.Name.Name)
	n := to.Line - from.Line + 1
	if room == 1 {
		t.funcs = append(t.funcs, sized{what, n})
		if d.Recv != nil {
			p.methods[receiver(d.Recv.List[0].Type)]++
		}
	}
	t.limit(what, "lines", n, room*maxFunc)
}

// receiver is the name of a method's type without star and type parameters.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}

func (t *tree) interfaces(dir string, d *ast.GenDecl) {
	for _, s := range d.Specs {
		ts, ok := s.(*ast.TypeSpec)
		if !ok {
			continue
		}
		it, ok := ts.Type.(*ast.InterfaceType)
		if !ok {
			continue
		}
		n := 0
		for _, m := range it.Methods.List {
			n += len(m.Names) // an embedded interface has no name here
		}
		name := dir + "." + ts.Name.Name
		t.ifaces = append(t.ifaces, sized{name, n})
		limit := maxIface
		if ports[name] {
			limit = maxPort
		}
		t.limit("interface "+name, "methods", n, limit)
	}
}

func (t *tree) pkg(p *pkg) {
	if p.ours && !p.doc {
		t.problems = append(t.problems, p.dir+": package has no doc comment")
	}
	if p.lines > 0 {
		t.packages = append(t.packages, sized{p.dir, p.lines})
	}
	t.limit("package "+p.dir, "lines without tests", p.lines, maxPackage)
	for name, n := range p.methods {
		what := "type " + p.dir + "." + name
		t.types = append(t.types, sized{what, n})
		t.limit(what, "methods", n, maxMethods)
	}
}

func (t *tree) limit(what, unit string, n, limit int) {
	if n > limit {
		t.problems = append(t.problems, fmt.Sprintf("%s: %d %s, at most %d", what, n, unit, limit))
	}
}
