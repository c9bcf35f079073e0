package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/config"
)

// fuse runs the whole command line in this process.
func fuse(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	streams := cli.Streams{In: strings.NewReader(""), Out: &o, Err: &e}
	root := cli.New(cli.Options{
		Version: "v-test", Streams: streams, Getenv: func(string) string { return "" },
		Extra: []*cobra.Command{devCmd(streams), serverCmd(streams), hostdCmd(streams), imageCmd(streams), storeCmd(streams), benchCmd(streams)},
	})
	code = cli.Execute(t.Context(), root, args)
	return code, o.String(), e.String()
}

// Users have contexts of their own: dev adds one and says which it replaced.
func TestDevKeepsOtherContexts(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	path := filepath.Join(home, "fuse", "config.yaml")
	prod := cli.Context{Name: "prod", BaseURL: "https://prod", Token: "P", Rest: map[string]any{"active_host": "h1"}}
	old := cli.Config{CurrentContext: "prod", Contexts: []cli.Context{{Name: "local", BaseURL: "http://old", Token: "old"}, prod}}
	if err := old.Save(path); err != nil {
		t.Fatal(err)
	}
	at, before, err := writeContext("local", "http://127.0.0.1:8080", "/d/token")
	if err != nil || at != path || before != "prod" {
		t.Fatalf("%q %q %v", at, before, err)
	}
	got, err := cli.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	want := cli.Config{CurrentContext: "local", Contexts: []cli.Context{{Name: "local", BaseURL: "http://127.0.0.1:8080", TokenFile: "/d/token"}, prod}}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file: %v %v", info, err)
	}
	// A file that cannot be read is left as it is.
	if err := os.WriteFile(path, []byte("contexts: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := writeContext("local", "http://x", "/d/token"); err == nil {
		t.Error("a broken file was overwritten")
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "contexts: [" {
		t.Errorf("%q %v", raw, err)
	}
}

// prepared is dev with arguments and a directory of its own.
func prepared(t *testing.T, dir string, args ...string) *dev {
	t.Helper()
	d, cmd := &dev{}, &cobra.Command{}
	registerSettings(cmd)
	if err := cmd.ParseFlags(append([]string{"--data-dir", dir}, args...)); err != nil {
		t.Fatal(err)
	}
	if err := d.prepare(cmd); err != nil {
		t.Fatal(err)
	}
	return d
}

// The context that dev writes names DIR/token, so that file holds the token in
// use, wherever it came from.
func TestDevTokenIsInItsFile(t *testing.T) {
	dir := t.TempDir()
	read := func() string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(dir, "token"))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, "token")); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("mode %v %v", info, err)
		}
		return strings.TrimSpace(string(raw))
	}
	first := prepared(t, dir).settings.AuthToken
	if first == "" || first != read() || first != prepared(t, dir).settings.AuthToken {
		t.Error("the token made at first is not kept")
	}
	if prepared(t, dir, "--auth-token", "given"); read() != "given" {
		t.Errorf("the file holds %q", read())
	}
}

func TestDataDirHasADefault(t *testing.T) {
	for _, c := range []struct {
		args []string
		vars map[string]string
		want string
	}{
		{nil, nil, datadir.Default()},
		{nil, map[string]string{"ORCH_DATA_DIR": "/env"}, "/env"},
		{[]string{"--data-dir", "/flag"}, map[string]string{"ORCH_DATA_DIR": "/env"}, "/flag"},
	} {
		cmd := &cobra.Command{}
		registerSettings(cmd)
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		s, err := readSettings(cmd, config.Environ{Lookup: func(k string) (string, bool) { v, ok := c.vars[k]; return v, ok }, ReadFile: os.ReadFile})
		if err != nil || s.DataDir != c.want {
			t.Errorf("%v %v: %q %v, want %q", c.args, c.vars, s.DataDir, err, c.want)
		}
	}
}

func TestDaemonsSayWhatIsWrong(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"dev"}, cli.ExitFailed, []string{"QEMU is missing", "apt-get install qemu-system"}},
		{[]string{"dev", "--driver", "vmware"}, cli.ExitUsage, []string{"vmware", "qemu or sim"}},
		{[]string{"dev", "--driver", "sim", "--listen", "256.0.0.1:99999"}, cli.ExitUsage, []string{"--listen"}},
		{[]string{"dev", "--driver", "sim", "--listen", "127.0.0.1:0", "--host-cpus", "-1"}, cli.ExitUsage, []string{"--host-cpus is -1"}},
		{[]string{"hostd", "--driver", "sim", "--max-vms", "-5"}, cli.ExitUsage, []string{"--max-vms is -5"}},
		{[]string{"server", "--listen", "0.0.0.0:0"}, cli.ExitUsage, []string{"--auth-token-file"}},
		{[]string{"hostd", "--token", "a", "--token-file", "b"}, cli.ExitUsage, []string{"both given"}},
	} {
		code, out, errs := fuse(t, append(c.args, "--data-dir", t.TempDir())...)
		for _, want := range c.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%v does not say %q: %s", c.args, want, errs)
			}
		}
		if code != c.code || out != "" || strings.Contains(errs, "sesame") {
			t.Errorf("%v: exit code %d, want %d; %s%s", c.args, code, c.code, out, errs)
		}
	}
}

func TestImagesAsJSON(t *testing.T) {
	for _, args := range [][]string{{"--json"}, {"-o", "json"}} {
		code, out, errs := fuse(t, append([]string{"image", "ls", "--data-dir", t.TempDir()}, args...)...)
		if code != cli.ExitOK || strings.TrimSpace(out) != `{"images":[]}` {
			t.Errorf("%v: %d %q %s", args, code, out, errs)
		}
	}
}
