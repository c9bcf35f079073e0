package playguard

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// numbers are the field reports that there are.
var numbers = strings.Fields(`T01 T02 T03 T04 T05 T06 T07 T08 T09 T10 T11 T12 T13 T14 T16 T17 T18 T19 T20 T21 T22 T23 T24 T25 T26
	T27 T28 T29 T31 T32 T33 T34 T36 T37 T38 T39 T40 T42 T43 T45 T46`)

var (
	quoted     = regexp.MustCompile("`([^`]+)`")
	numberCell = regexp.MustCompile(`(?m)^\| (T\d\d) \|`)
)

// TestTableNamesWhatExists holds docs/reference/playguard-tests.md to the code.
func TestTableNamesWhatExists(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root, "docs/reference/playguard-tests.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	var have []string
	for _, m := range numberCell.FindAllStringSubmatch(text, -1) {
		have = append(have, m[1])
	}
	if !slices.Equal(have, numbers) {
		t.Errorf("the table has %v, want %v", have, numbers)
	}
	rows := map[string]bool{}
	for _, r := range all() {
		rows[r.name] = false
		for _, n := range regexp.MustCompile(`T\d\d`).FindAllString(r.name, -1) {
			line := regexp.MustCompile(`(?m)^\| ` + n + ` \|.*$`).FindString(text)
			if !strings.Contains(line, "`rows: "+r.name+"`") {
				t.Errorf("%s does not name its row %q", n, r.name)
			}
		}
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			where, name, ok := strings.Cut(m[1], ": ")
			switch {
			case !ok:
			case where == "rows":
				if _, known := rows[name]; !known {
					t.Errorf("there is no row %q", name)
				}
				rows[name] = true
			case where == "scenario":
				if _, err := os.Stat(filepath.Join(root, "internal/playguard/decide/testdata", name+".txtar")); err != nil {
					t.Error(err)
				}
			default:
				if !hasTest(t, where, name) {
					t.Errorf("%s has no test %s", where, name)
				}
			}
		}
	}
	for name, named := range rows {
		if !named {
			t.Errorf("the table does not name row %q", name)
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && strings.Contains(string(text), "func "+name+"(t *testing.T)")
	})
}
