package runner_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/runner"
)

// A host is asked what Compose it has once for each change of the programs that
// may be it.
func TestComposeIsAskedOnce(t *testing.T) {
	t.Parallel()
	b := newBough(t)
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	plugin := filepath.Join(home, ".docker", "cli-plugins", "docker-compose")
	write := func(path, text string, age time.Duration) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age).Truncate(time.Second)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	count := `#!/bin/sh
[ "$*" = "compose version --short" ] || [ "$*" = "version --short" ] || exit 1
echo x >>` + dir + "/asked\n"
	write(filepath.Join(dir, "docker"), count+"[ -e "+plugin+" ] && cat "+plugin+"\n", time.Hour)
	write(plugin, "2.9.9\n", time.Hour)
	b.env = append(b.env, "HOME="+home, "DOCKER_CONFIG=")
	text := strings.Replace(string(runner.Script), "\nPATH=", "\nPATH="+dir+":", 1)
	if err := os.WriteFile(b.script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(b.root, "installations"), 0o700); err != nil {
		t.Fatal(err)
	}
	look := func(says string, asked int) {
		t.Helper()
		out, _, _ := b.do(nil, "observe", "0123456789abcdef0123456789abcdef")
		_, part, _ := strings.Cut(out, "PART compose ")
		_, part, _ = strings.Cut(part, "\n")
		part, _, _ = strings.Cut(part, "PART")
		raw, _ := os.ReadFile(filepath.Join(dir, "asked"))
		if !strings.HasPrefix(part, says) || strings.Count(string(raw), "x") != asked {
			t.Errorf("a look says %q, want %q; asked %d times, want %d", part, says, strings.Count(string(raw), "x"), asked)
		}
	}
	look("flavour=v2\nversion=2.9.9\n", 1)
	look("flavour=v2\nversion=2.9.9\n", 1)
	write(plugin, "2.10.0\n", time.Minute)
	look("flavour=v2\nversion=2.10.0\n", 2)
	if err := os.Remove(plugin); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "docker-compose"), count+"echo 1.29.2\n", time.Hour)
	look("flavour=v1\nversion=1.29.2\n", 4)
	look("flavour=v1\nversion=1.29.2\n", 4)
	kept := filepath.Join(b.root, "installations", "inst1.compose")
	for i, damaged := range []string{"", "half\n", "a\nb\nc\n"} {
		if err := os.WriteFile(kept, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		look("flavour=v1\nversion=1.29.2\n", 6+2*i)
	}
}
