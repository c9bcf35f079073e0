package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// Oracle holds, when the test ends, what must hold on a host to which whole
// servers go: bystanders are as they were, and nothing was taken away without an
// operation that the host has a record of.
type Oracle struct {
	t      testing.TB
	root   string
	watch  *Watch
	by     *Bystanders
	before string
	began  time.Time
}

// Guard puts bystanders beside whoever works below root, and checks when the test
// ends. It has to come before the host's sshd and the servers, which end first.
func Guard(t testing.TB, d *dockertest.Daemon, root string) {
	t.Helper()
	o := &Oracle{t: t, root: root, watch: NewWatch(t, d), by: AddBystanders(t, d)}
	o.before, o.began = o.by.Inventory(), time.Now()
	t.Cleanup(o.check)
}

func (o *Oracle) check() {
	o.t.Helper()
	spans, ours := OnHost(o.t, o.root)
	after := strings.Split(o.by.Inventory(ours...), "\n")
	after = slices.DeleteFunc(after, func(line string) bool { // pulled by us
		return strings.HasPrefix(line, imageLine) && !strings.Contains(o.before, line+"\n")
	})
	if diff := Diff(o.before, strings.Join(after, "\n")); diff != "" {
		o.t.Errorf("a bystander changed:\n%s", diff)
	}
	for _, e := range Unexplained(o.watch.Since(o.t, o.began), spans) {
		o.t.Errorf("without an operation of ours: %s", e)
	}
}

// OnHost are the operations that a host has records of below a root, and the
// installations. An operation is owed the newest epoch that any had that began
// before it.
func OnHost(t testing.TB, root string) (spans []Span, installations []model.InstallationID) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(root, "ops", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		installations = append(installations, model.InstallationID(filepath.Base(dir)))
		files, err := filepath.Glob(filepath.Join(dir, "*", "what"))
		if err != nil {
			t.Fatal(err)
		}
		var list []Span
		for _, f := range files {
			list = append(list, onHost(t, f))
		}
		slices.SortFunc(list, func(a, b Span) int { return a.From.Compare(b.From) })
		newest := uint64(0)
		for i := range list {
			newest = max(newest, list[i].Epoch)
			list[i].Current = newest
		}
		spans = append(spans, list...)
	}
	return spans, installations
}

// onHost reads one record: "project kind epoch", written when it began.
func onHost(t testing.TB, what string) Span {
	t.Helper()
	text, err := os.ReadFile(what)
	if err != nil {
		t.Fatal(err)
	}
	s := Span{Op: filepath.Base(filepath.Dir(what)), Named: true, To: time.Now()}
	if _, err := fmt.Sscan(string(text), &s.Project, &s.Kind, &s.Epoch); err != nil {
		t.Fatalf("%s: %q: %v", what, text, err)
	}
	info, err := os.Stat(what)
	if err != nil {
		t.Fatal(err)
	}
	s.From = info.ModTime()
	if end, err := os.Stat(filepath.Join(filepath.Dir(what), "exit")); err == nil {
		s.To = end.ModTime()
	}
	return s
}
