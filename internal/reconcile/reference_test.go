package reconcile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every rule of the reference page names tests that exist, and every story is
// named by a rule.
func TestReferenceNamesItsTests(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/reconcile.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	code := regexp.MustCompile("`([^`]+)`")
	rules := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 2 || strings.HasPrefix(line, "| rule") || strings.HasPrefix(line, "| ---") {
			continue
		}
		rules++
		names := code.FindAllStringSubmatch(cells[1], -1)
		if len(names) == 0 {
			t.Errorf("no test holds %q", cells[0])
		}
		for _, name := range names {
			told[name[1]] = true
			if !exists(t, name[1]) {
				t.Errorf("there is no test %s, which is to hold %q", name[1], cells[0])
			}
		}
	}
	if rules < 50 {
		t.Errorf("only %d rules were read", rules)
	}
	stories, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, story := range stories {
		if name := strings.TrimSuffix(filepath.Base(story), ".txtar"); !told[name] {
			t.Errorf("no rule names the story %s", name)
		}
	}
}

// exists finds a story, or "package.TestX" below internal.
func exists(t *testing.T, name string) bool {
	t.Helper()
	pkg, test, isTest := strings.Cut(name, ".")
	if !isTest {
		_, err := os.Stat(filepath.Join("testdata", name+".txtar"))
		return err == nil
	}
	files, err := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("\nfunc "+test+"(")) {
			return true
		}
	}
	return false
}
