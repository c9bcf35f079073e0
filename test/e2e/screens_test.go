package e2e

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// pane is a program on a terminal of tmux's, which keeps the screen as a person
// sees it.
type pane struct {
	t      *testing.T
	socket string
	env    []string
}

// onPane runs a program in a tmux of its own.
func onPane(t *testing.T, env []string, argv ...string) *pane {
	t.Helper()
	dir := t.TempDir()
	p := &pane{t: t, socket: filepath.Join(dir, "tmux"), env: append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8", "TERM=xterm-256color", "SHELL=/bin/sh",
	}, env...)}
	conf := filepath.Join(dir, "conf")
	// What ends stays to be looked at; keys come at once.
	text := "set -g default-terminal tmux-256color\nset -g remain-on-exit on\nset -g status off\nset -sg escape-time 0\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.tmux(append([]string{"-f", conf, "new-session", "-d", "-x", "80", "-y", "24", "-s", "s"}, argv...)...)
	t.Cleanup(func() { p.tmux("kill-server") })
	return p
}

func (p *pane) tmux(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", p.socket}, args...)...)
	cmd.Env = p.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("tmux %s: %v: %s", args, err, errs.String())
	}
	return out.String()
}

// clock is what top shows of the time of day.
var clock = regexp.MustCompile(`\d\d:\d\d:\d\d`)

// screen is all of it: text, colours, and where the cursor is.
func (p *pane) screen() string {
	p.t.Helper()
	at := p.tmux("display-message", "-p", "-t", "s", "#{cursor_y},#{cursor_x} #{pane_width}x#{pane_height} #{alternate_on} #{cursor_flag}#{insert_flag}#{keypad_flag}")
	return at + clock.ReplaceAllString(p.tmux("capture-pane", "-p", "-e", "-t", "s"), "hh:mm:ss")
}

// both are the same program in the machine and here.
type both struct{ there, here *pane }

// stroke sends keys to both and waits until both show text and look the same.
func (b both) stroke(text string, keys ...string) {
	b.there.t.Helper()
	for _, p := range []*pane{b.there, b.here} {
		if len(keys) > 0 {
			p.tmux(append([]string{"send-keys", "-t", "s"}, keys...)...)
		}
	}
	b.agree(text)
}

func (b both) agree(text string) {
	t := b.there.t
	t.Helper()
	var there, here string
	end := time.Now().Add(2 * time.Minute)
	testkit.Eventually(t, 3*time.Minute, "the screens agree", func() bool {
		there, here = b.there.screen(), b.here.screen()
		return there == here && strings.Contains(there, text) || time.Now().After(end)
	})
	if there != here || !strings.Contains(there, text) {
		t.Fatalf("with %q the machine's screen is\n%q\nthe one here\n%q", text, there, here)
	}
}

// ends sends the last keys to both, which end well.
func (b both) ends(keys ...string) {
	b.there.t.Helper()
	for _, p := range []*pane{b.there, b.here} {
		send := func() time.Time {
			p.tmux(append([]string{"send-keys", "-t", "s"}, keys...)...)
			return time.Now()
		}
		// top empties its terminal once it has left its help, and what was typed a
		// moment after that is on the screen is gone with it: once more, then.
		sent, again := send(), false
		testkit.Eventually(b.there.t, 2*time.Minute, "the program ends with 0", func() bool {
			if !again && time.Since(sent) > 20*time.Second {
				sent, again = send(), true
			}
			return p.tmux("display-message", "-p", "-t", "s", "#{pane_dead} #{pane_dead_status}") == "1 0\n"
		})
	}
}

func (b both) resize(cols, rows string) {
	for _, p := range []*pane{b.there, b.here} {
		p.tmux("resize-window", "-t", "s", "-x", cols, "-y", rows)
	}
}

// screenRoot is a root with vim and top of this machine, what they need, and the
// processes of a machine that stands still.
func screenRoot(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "screen")
	put := func(path string, data []byte) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	have := func(path string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		put(path, data)
	}
	for _, program := range []string{"/usr/bin/vim", "/usr/bin/top", "/usr/bin/env"} {
		have(program)
		out, err := exec.Command("ldd", program).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", program, err)
		}
		for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
			have(lib)
		}
	}
	have("/lib/terminfo/t/tmux-256color")
	const vim, locale = "/usr/share/vim/vim*/", "/usr/lib/locale/C.utf8/"
	for _, pattern := range []string{vim + "*.vim", vim + "syntax/*syn*.vim", vim + "syntax/python.vim", vim + "colors/*.vim", vim + "colors/lists/*.vim", locale + "LC_[A-LN-Z]*", locale + "LC_M[EO][AN]*", locale + "LC_MESSAGES/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, path := range found {
			have(path)
		}
	}
	put("/text.py", []byte("#!/usr/bin/env python3\n"+strings.Repeat("def gruß(x):  # größer\n    return \"漢字 %d\" % (x + 1)\n\n", 30)))
	standing(t, put)
	return root
}

// standing makes a /proc in which nothing happens.
func standing(t *testing.T, put func(string, []byte)) {
	t.Helper()
	for path, text := range map[string]string{
		"uptime": "4711.50 9000.25\n", "loadavg": "0.42 0.23 0.11 1/123 4567\n",
		"stat":    "cpu  10000 200 3000 800000 150 0 70 0 0 0\ncpu0 10000 200 3000 800000 150 0 70 0 0 0\nintr 1\nctxt 1\nbtime 1700000000\nprocesses 4567\nprocs_running 1\nprocs_blocked 0\nsoftirq 1\n",
		"meminfo": "MemTotal:        2048000 kB\nMemFree:          512000 kB\nMemAvailable:    1024000 kB\nBuffers:           64000 kB\nCached:           256000 kB\nSwapCached:            0 kB\nActive:           300000 kB\nInactive:         200000 kB\nSwapTotal:       1024000 kB\nSwapFree:         900000 kB\nDirty:               100 kB\nShmem:              2000 kB\nSlab:              50000 kB\nSReclaimable:      30000 kB\nSUnreclaim:        20000 kB\n",
		"vmstat":  "nr_free_pages 128000\n", "sys/kernel/osrelease": "6.1.0\n", "sys/kernel/pid_max": "32768\n", "version": "Linux version 6.1.0\n",
		"filesystems": "\text4\n", "mounts": "", "cpuinfo": "processor\t: 0\n",
	} {
		put("/proc/"+path, []byte(text))
	}
	put("/dev/null", nil)
	for i, p := range []struct{ pid, name, state, command string }{
		{"1", "init", "S", "/init"}, {"self", "top", "R", "top\x00"}, {"20", "worker", "R", "worker\x00"}, {"300", "sleeper", "S", "sleeper\x00"}, {"301", "größer", "D", "größer\x00"},
	} {
		ticks := []string{"12", "1", "34000", "5", "77"}[i]
		put("/proc/"+p.pid+"/stat", []byte(p.pid+" ("+p.name+") "+p.state+" 0 "+p.pid+" "+p.pid+" 0 -1 4194560 100 0 0 0 "+ticks+" 10 0 0 20 0 1 0 100 10485760 1000 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"))
		put("/proc/"+p.pid+"/statm", []byte("2560 1000 500 10 0 300 0\n"))
		put("/proc/"+p.pid+"/cmdline", []byte(p.command))
		put("/proc/"+p.pid+"/status", []byte("Name:\t"+p.name+"\nUmask:\t0022\nState:\t"+p.state+"\nTgid:\t"+p.pid+"\nPid:\t"+p.pid+"\nPPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nVmSize:\t   10240 kB\nVmRSS:\t    4000 kB\nThreads:\t1\n"))
		for _, other := range []string{"environ", "cgroup", "wchan", "io", "oom_score", "oom_score_adj"} {
			put("/proc/"+p.pid+"/"+other, nil)
		}
	}
}

// screens runs vim and top in the machine and here, in the same root, each under
// a tmux of its own, and compares what a person sees byte by byte, with colours
// and cursor, after every stroke.
func screens(t *testing.T, d *daemon, id string) {
	root := screenRoot(t)
	d.must("exec", id, "--", "mkdir", "-p", "/opt")
	d.must("cp", root, id+":/opt/screen")
	run := func(t *testing.T, argv ...string) both {
		t.Helper()
		vars := []string{"env", "-i", "PATH=/usr/bin:/bin", "HOME=/", "LANG=C.UTF-8", "TZ=UTC", "TERM=tmux-256color"}
		env := []string{"XDG_CONFIG_HOME=" + d.home, "FUSE_TOKEN=" + d.token()}
		return both{
			there: onPane(t, env, slices.Concat([]string{bins.fuse, "--url", d.url, "exec", "-t", id, "--", "chroot", "/opt/screen"}, vars, argv)...),
			here:  onPane(t, nil, slices.Concat([]string{"chroot", root}, vars, argv)...),
		}
	}
	t.Run("vim", func(t *testing.T) {
		b := run(t, "vim", "-u", "NONE", "-i", "NONE", "-n", "-N", "--cmd", "set ruler showcmd showmode", "-c", "syntax on", "/text.py")
		b.stroke("\x1b[") // it has colours
		b.stroke("46,0-1", ":set number hlsearch incsearch", "Enter", "/gr", "Enter", "46G")
		b.stroke("-- INSERT --", "o", "neue Zeile: äöü €, 漢字, \U0001f600 ende")
		b.stroke("-- VISUAL BLOCK --", "Escape", "10G", "C-v", "5j", "l")
		b.resize("101", "31")
		b.agree("101x31")
		b.stroke("[No Name]", "Escape", ":vnew", "Enter", ":colorscheme desert", "Enter", "C-w", "w", "G")
		b.stroke("91,5", "dd")
		b.ends(":qa!", "Enter")
	})
	t.Run("top", func(t *testing.T) {
		b := run(t, "top", "-d", "5", "-o", "PID") // by something that is nobody's twice
		b.stroke("worker")
		b.stroke("\x1b[33m", "z")   // in colours
		b.stroke("größer\n\n", "R") // the other way round
		b.stroke("Help for Interactive", "h")
		b.stroke("größer\n\n", "q")
		b.ends("q")
	})
	d.must("exec", id, "--", "rm", "-rf", "/opt/screen")
	if _, err := os.Stat(filepath.Join(root, "text.py")); errors.Is(err, fs.ErrNotExist) {
		t.Error("the root here is gone")
	}
}
