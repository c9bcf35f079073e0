package bench

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Guest measures how one environment is reached through the API: commands, and
// a file up and down, whose bytes are compared.
type Guest struct {
	Target Target
	Env    string // id of a running environment
	Execs  int
	Bytes  int64
	// SSH, if set, is a host that ssh and scp measure beside it, and SSHOptions
	// what both are given.
	SSH        string
	SSHOptions []string
	Processes  map[string]int // by name the pid of those whose memory is told
	Out        io.Writer
}

// guestFile is where the transfers put their file; it is removed.
const guestFile = "/root/fuse-bench-file"

// Run measures and prints what it saw.
func (g *Guest) Run(ctx context.Context) (err error) {
	g.print("machine: %s\n", Machine())
	if err := g.memory(ctx, "before"); err != nil {
		return err
	}
	if err := g.commands(ctx); err != nil {
		return err
	}
	defer func() {
		_, rerr := g.exec(context.WithoutCancel(ctx), "rm", "-f", guestFile)
		err = errors.Join(err, rerr)
	}()
	if err := g.transfers(ctx); err != nil {
		return err
	}
	if err := g.memory(ctx, "after"); err != nil {
		return err
	}
	if g.SSH == "" {
		return nil
	}
	return g.beside(ctx)
}

func (g *Guest) print(format string, args ...any) { fmt.Fprintf(g.Out, format, args...) }

// Machine names what was measured on: figures without it say nothing.
func Machine() string {
	model := "unknown processor"
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	load := "?"
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(raw), " ")
	}
	return fmt.Sprintf("%s, %d processors, load %s", model, runtime.NumCPU(), load)
}

// exec runs a command and returns what it wrote.
func (g *Guest) exec(ctx context.Context, argv ...string) (string, error) {
	raw, err := g.Target.Call(ctx, http.MethodPost, "/v1/environments/"+url.PathEscape(g.Env)+"?action=exec", map[string]any{"cmd": argv})
	if err != nil {
		return "", err
	}
	var res struct {
		ExitCode int    `json:"exit_code"`
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
	}
	if err := json.Unmarshal(raw, &res); err != nil {
		return "", fmt.Errorf("answer of a command: %w", err)
	}
	if res.ExitCode != 0 {
		return "", fmt.Errorf("%s ends with %d: %.300s", argv[0], res.ExitCode, res.Stderr)
	}
	return res.Stdout, nil
}

func (g *Guest) commands(ctx context.Context) error {
	for _, workers := range []int{1, 8} {
		l, err := Each(ctx, g.Execs, workers, func(ctx context.Context, _ int) error {
			_, err := g.exec(ctx, "true")
			return err
		})
		if err != nil {
			return err
		}
		g.print("exec true, API, %d at a time: %s\n", workers, l)
	}
	return nil
}

// transfers sends a file up and gets it down again.
func (g *Guest) transfers(ctx context.Context) error {
	path := g.Target.Base + "/v1/environments/" + url.PathEscape(g.Env) + "/files?path=" + url.QueryEscape(guestFile)
	sent, got := sha256.New(), sha256.New()
	took, err := g.transfer(ctx, http.MethodPut, path, io.TeeReader(noise(g.Bytes), sent), io.Discard)
	if err != nil {
		return err
	}
	g.print("up, API: %s\n", g.rate(took))
	if took, err = g.transfer(ctx, http.MethodGet, path, nil, got); err != nil {
		return err
	}
	g.print("down, API: %s\n", g.rate(took))
	return same(sent, got)
}

func same(a, b hash.Hash) error {
	if want, have := a.Sum(nil), b.Sum(nil); string(want) != string(have) {
		return fmt.Errorf("the file came back as %x and was sent as %x", have, want)
	}
	return nil
}

func (g *Guest) transfer(ctx context.Context, method, address string, in io.Reader, out io.Writer) (time.Duration, error) {
	begun := time.Now()
	req, err := http.NewRequestWithContext(ctx, method, address, in)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+g.Target.Token)
	resp, err := g.Target.Client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // the status says enough without
		return 0, fmt.Errorf("%s: %s: %s", method, resp.Status, said)
	}
	_, err = io.Copy(out, resp.Body)
	return time.Since(begun), err
}

func (g *Guest) rate(took time.Duration) string {
	return fmt.Sprintf("%.1f MB/s (%d MB in %s)", float64(g.Bytes)/1e6/took.Seconds(), g.Bytes/1000/1000, took.Round(time.Millisecond))
}

// noise is n bytes that do not compress.
func noise(n int64) io.Reader {
	var seed [32]byte
	_, _ = rand.Read(seed[:]) // never fails
	return io.LimitReader(mathrand.NewChaCha8(seed), n)
}

// memory tells the memory of the processes, and of the guest's agent.
func (g *Guest) memory(ctx context.Context, when string) error {
	for name, pid := range g.Processes {
		u, err := ProcessUsage(name, pid)
		if err != nil {
			return err
		}
		g.print("memory of %s %s: %.1f MB, at most %.1f MB\n", name, when, float64(u.RSS)/1e6, float64(u.Peak)/1e6)
	}
	status, err := g.exec(ctx, "cat", "/proc/1/status")
	if err != nil {
		return err
	}
	g.print("memory of fused %s: %.1f MB, at most %.1f MB\n", when, float64(statusBytes([]byte(status), "VmRSS:"))/1e6, float64(statusBytes([]byte(status), "VmHWM:"))/1e6)
	return nil
}

// beside measures the same by ssh and scp to another host.
func (g *Guest) beside(ctx context.Context) (err error) {
	run := func(ctx context.Context, program string, args ...string) error {
		out, err := exec.CommandContext(ctx, program, append(append([]string{"-q", "-o", "BatchMode=yes"}, g.SSHOptions...), args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %.300s", program, err, out)
		}
		return nil
	}
	l, err := Each(ctx, g.Execs, 1, func(ctx context.Context, _ int) error { return run(ctx, "ssh", g.SSH, "true") })
	if err != nil {
		return err
	}
	g.print("exec true, ssh: %s\n", l)
	dir, err := os.MkdirTemp("", "fuse-bench-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	f, err := os.Create(filepath.Join(dir, "up"))
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, noise(g.Bytes)); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	remote := "fuse-bench-" + filepath.Base(dir)
	defer func() { err = errors.Join(err, run(context.WithoutCancel(ctx), "ssh", g.SSH, "rm", "-f", remote)) }()
	for _, way := range [][3]string{{"up", f.Name(), g.SSH + ":" + remote}, {"down", g.SSH + ":" + remote, filepath.Join(dir, "down")}} {
		begun := time.Now()
		if err := run(ctx, "scp", way[1], way[2]); err != nil {
			return err
		}
		g.print("%s, scp: %s\n", way[0], g.rate(time.Since(begun)))
	}
	return nil
}
