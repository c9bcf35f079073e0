package runner_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
	text := altered(t, string(runner.Script), map[string]string{"\nPATH=": "\nPATH=" + dir + ":"})
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
	for i, at := range []int64{time.Now().Add(-61 * time.Minute).Unix(), time.Now().Add(time.Hour).Unix(), time.Now().Add(-50 * time.Minute).Unix()} {
		raw, err := os.ReadFile(kept)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(raw), "\n")
		lines[3] = strconv.FormatInt(at, 10)
		if err := os.WriteFile(kept, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		look("flavour=v1\nversion=1.29.2\n", min(12+2*i, 14))
	}
}

// Docker does not find what its user has of Compose when an operation has logins of
// its own: it is run nevertheless, before an older one.
func TestComposeOfTheUser(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		dir := t.TempDir()
		home, root, script := filepath.Join(dir, "home"), filepath.Join(dir, "fuse"), filepath.Join(dir, "runner")
		plugin, project, op := filepath.Join(home, ".docker", "cli-plugins", "docker-compose"), filepath.Join(root, "playgrounds", "a--p1"), filepath.Join(root, "ops", "inst1", "op1")
		said := filepath.Join(dir, "said")
		for path, text := range map[string]string{
			filepath.Join(dir, "docker"):         "#!/bin/sh\n[ $1 != context ] || exit 1\n[ -e \"${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins/docker-compose\" ] && echo docker $* >>" + said + "\n",
			filepath.Join(dir, "docker-compose"): "#!/bin/sh\necho older $* >>" + said + "\n",
			plugin:                               "#!/bin/sh\n[ $1 = version ] || echo \"$DOCKER_CONFIG $*\" >>" + said + "\n",
			filepath.Join(project, "docker-config", "config.json"): "{}",
			filepath.Join(op, "what"):                              "a--p1 stop 1\n",
			script:                                                 altered(t, string(runner.Script), map[string]string{"\nPATH=": "\nPATH=" + dir + ":"}),
		} {
			if os.MkdirAll(filepath.Dir(path), 0o700) != nil || os.WriteFile(path, []byte(text), 0o700) != nil {
				t.Fatal(path)
			}
		}
		stop := func() string {
			t.Helper()
			_ = os.Remove(said) // it may not be there
			cmd := exec.CommandContext(t.Context(), shell[0], append(slices.Clone(shell[1:]), script, "run", root, "inst1", "op1", "a--p1", "p1", "stop", "60")...)
			cmd.Env = append(os.Environ(), "HOME="+home, "DOCKER_CONFIG=")
			out, _ := cmd.CombinedOutput() // how it ended it writes down
			if exit, err := os.ReadFile(filepath.Join(op, "exit")); err != nil || string(exit) != "0\n" {
				t.Fatalf("%s: %q %v: %s", shell[0], exit, err, out)
			}
			raw, err := os.ReadFile(said)
			if err != nil {
				t.Fatal(err)
			}
			return string(raw)
		}
		if got, want := stop(), filepath.Join(project, "docker-config")+" -p a--p1 -f "+project+"/compose.yml stop\n"; got != want {
			t.Errorf("%s: %q, want %q", shell[0], got, want)
		}
		if err := os.Remove(plugin); err != nil {
			t.Fatal(err)
		}
		if got := stop(); got != "older -p a--p1 -f "+project+"/compose.yml stop\n" {
			t.Errorf("%s: without it: %q", shell[0], got)
		}
	}
}
