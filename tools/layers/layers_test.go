package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func p(path string, imports ...string) gopkg {
	for i, imp := range imports {
		if strings.HasPrefix(imp, "internal/") || strings.HasPrefix(imp, "cmd/") {
			imports[i] = module + "/" + imp
		}
	}
	return gopkg{ImportPath: module + "/" + path, Imports: imports, Deps: imports}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name string
		pkg  gopkg
		want []string
	}{
		{"down", p("internal/lifecycle", "internal/state", "internal/schedule", "internal/fleet", "context"), nil},
		{"cmd may all", p("cmd/fuse", "internal/api", "internal/store/sqlite", "internal/hostd/qemu"), nil},
		{"one unit", p("internal/cli", "internal/cli/table"), nil},
		{"sibling", p("internal/lifecycle", "internal/hosts"),
			[]string{"internal/lifecycle imports internal/hosts: siblings (services and the loop) do not import each other"}},
		{"up", p("internal/state", "internal/lifecycle"),
			[]string{`internal/state imports internal/lifecycle: imports go down only, from "owner" to "services and the loop" is up`}},
		{"adapter", p("internal/converge", "internal/provider/remote"),
			[]string{"internal/converge imports internal/provider/remote: an adapter is imported by cmd and tests alone"}},
		{"adapter uses what is below", p("internal/provider/remote", "internal/hostwire", "internal/provider", "internal/fleet"), nil},
		{"vocabulary", p("internal/fleet", "time", "github.com/oklog/ulid/v2"),
			[]string{"internal/fleet imports github.com/oklog/ulid/v2; it may use the standard library only"}},
		{"decider", p("internal/reconcile", "context", "time", "internal/fleet"),
			[]string{"internal/reconcile imports context; a decider sees only its input"}},
		{"test kit in the product", p("internal/state", "internal/testkit"),
			[]string{"internal/state imports internal/testkit: only tests may"}},
		{"suite uses the test kit", p("internal/store/storetest", "internal/testkit", "internal/state", "internal/store/memory"), nil},
		{"no place", p("internal/misc"),
			[]string{"internal/misc is not in the layer table; give it a place in tools/layers/table.go"}},
		{"the far side", p("internal/hostd", "internal/hostd/driver", "internal/state"), []string{
			`internal/hostd imports internal/state: imports go down only, from "host and guest agents" to "owner" is up`,
			"internal/hostd reaches internal/state: the far side knows nothing of the control plane",
		}},
		{"reached through others", gopkg{ImportPath: module + "/cmd/fused", Deps: []string{module + "/internal/hostd/network"}},
			[]string{"cmd/fused reaches internal/hostd/network: the guest agent knows nothing of its host"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, check(module, []gopkg{tt.pkg})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestImpureUses(t *testing.T) {
	src := `package x
import (
	clock "time"
	time "example.org/other"
)
var d clock.Duration
func f(now clock.Time) { time.Now(); clock.Now(); go f(now); clock.After(d) }
`
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range impureUses(f) {
		got = append(got, u.what)
	}
	if diff := cmp.Diff([]string{"time.Now", "a goroutine", "time.After"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestThisTree(t *testing.T) {
	n, bad, err := run("../..")
	if err != nil {
		t.Fatal(err)
	}
	if n < 5 {
		t.Fatalf("only %d packages listed", n)
	}
	for _, b := range bad {
		t.Error(b)
	}
}
