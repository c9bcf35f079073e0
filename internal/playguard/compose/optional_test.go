package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// A file of variables that need not be there is left out if it is not, and is a
// plain path if it is; one that has to be there is asked for in either form.
func TestOptionalEnvFile(t *testing.T) {
	project, err := model.NewProject("shop", "pg1")
	if err != nil {
		t.Fatal(err)
	}
	render := func(files map[string][]byte, entries string) (compose.Rendered, error) {
		file := "services:\n  web:\n    image: a\n    env_file:\n" + entries
		return compose.Render(compose.Input{File: []byte(file), Files: files, Installation: "i", Playground: "pg1", Project: project})
	}
	const both = "      - web.env\n      - path: local.env\n        required: false\n"
	given := map[string][]byte{"web.env": []byte("A=1")}
	without, err := render(given, both)
	if err != nil || strings.Contains(string(without.File), "local.env") || strings.Contains(string(without.File), "required") || !slices.Equal(without.Uses, []string{"web.env"}) {
		t.Errorf("%v\n%s", err, without.File)
	}
	given["local.env"] = []byte("B=1")
	with, err := render(given, both)
	if err != nil || !strings.Contains(string(with.File), "local.env") || strings.Contains(string(with.File), "required") || with.Digest == without.Digest ||
		!slices.Equal(with.Uses, []string{"local.env", "web.env"}) {
		t.Errorf("%v\n%s", err, with.File)
	}
	if alone, err := render(map[string][]byte{}, "      - path: local.env\n        required: false\n"); err != nil || strings.Contains(string(alone.File), "env_file") {
		t.Errorf("%v\n%s", err, alone.File)
	}
	if first, err := render(nil, both); err != nil || !slices.Equal(first.Needs, []string{"local.env", "web.env"}) {
		t.Errorf("what may be there is not asked for: %v %v", first.Needs, err)
	}
	for _, entries := range []string{"      - path: gone.env\n", "      - path: gone.env\n        required: true\n", "      - path: ../out.env\n        required: false\n"} {
		if _, err := render(given, entries); err == nil {
			t.Errorf("%q is taken", entries)
		}
	}
}
