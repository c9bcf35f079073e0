package plane

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/config"
)

// TestRoutesAreTheContract holds what a server serves, from all areas
// together, to the paths and methods of api/openapi.yaml.
func TestRoutesAreTheContract(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(gen.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for path, ops := range doc.Paths {
		for method := range ops {
			if method != "parameters" {
				want[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	got := map[string]bool{}
	for _, r := range testPlane(t).api.Routes() {
		got[r.Method+" "+r.Pattern] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("served   %q\ncontract %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// testPlane is a control plane with default settings in a directory of its own.
func testPlane(t *testing.T) *Plane {
	t.Helper()
	cmd := &cobra.Command{}
	config.Register(cmd.Flags())
	s, err := config.Load(cmd.Flags(), config.Environ{Lookup: func(name string) (string, bool) {
		return t.TempDir(), name == "ORCH_DATA_DIR"
	}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(t.Context(), Config{Settings: s, Version: "test", Image: "minimal", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return p
}
