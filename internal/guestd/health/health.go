// Package health runs the probe that an environment was created with and keeps
// its verdict in a file beside it. Both files are the seed's: what is asked for
// is written by the control plane, the verdict by this package alone, and
// whoever reads it takes what the file says.
package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxFile bounds either file, in bytes.
const maxFile = 64 << 10

// Exec runs a command of the probe and tells its exit code and the end of what
// it printed.
type Exec func(ctx context.Context, argv []string, timeout time.Duration) (exit int, output string, err error)

// Runner runs the probe of one machine.
type Runner struct {
	dir     string
	exec    Exec
	log     *slog.Logger
	client  *http.Client
	changed chan struct{}
}

// New makes a runner for the files in dir; it does nothing until Run.
func New(dir string, exec Exec, log *slog.Logger) *Runner {
	return &Runner{
		dir: dir, exec: exec, log: log, changed: make(chan struct{}, 1),
		client: &http.Client{
			Transport:     &http.Transport{DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (r *Runner) configPath() string {
	return filepath.Join(r.dir, filepath.Base(fleet.GuestHealthcheckPath))
}
func (r *Runner) statePath() string {
	return filepath.Join(r.dir, filepath.Base(fleet.GuestHealthStatePath))
}

// Changed says that files were written, the probe among them perhaps.
func (r *Runner) Changed() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Run probes until ctx ends. Without a probe it waits for one.
func (r *Runner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		spec, raw, err := r.load()
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				r.log.WarnContext(ctx, "the healthcheck cannot be used", "error", err)
			}
			select {
			case <-r.changed:
			case <-ctx.Done():
			}
			continue
		}
		r.probe(ctx, spec, raw)
	}
}

func (r *Runner) load() (spec fleet.HealthcheckSpec, raw string, err error) {
	data, err := readFile(r.configPath())
	if err != nil {
		return spec, "", err
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return spec, "", fmt.Errorf("read the healthcheck: %w", err)
	}
	if (spec.HTTP == nil) == (len(spec.Exec) == 0) {
		return spec, "", errors.New("the healthcheck needs one of http and exec")
	}
	return spec, string(data), nil
}

// probe runs one probe until ctx ends or another one is written.
func (r *Runner) probe(ctx context.Context, spec fleet.HealthcheckSpec, raw string) {
	m := newMachine(spec, time.Now())
	// What an earlier probe or an earlier boot said is no verdict of this one.
	r.keep(ctx, m.status)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
			if _, now, err := r.load(); err != nil || now != raw {
				return
			}
			continue
		case <-timer.C:
		}
		began := time.Now()
		problem := r.try(ctx, spec, m.timeout)
		if ctx.Err() != nil {
			return
		}
		r.keep(ctx, m.attempt(time.Now(), problem))
		timer.Reset(max(0, m.interval-time.Since(began)))
	}
}

// try makes one attempt and says what is wrong, "" for nothing.
func (r *Runner) try(ctx context.Context, spec fleet.HealthcheckSpec, timeout time.Duration) string {
	if spec.HTTP != nil {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return r.get(ctx, *spec.HTTP)
	}
	exit, output, err := r.exec(ctx, spec.Exec, timeout)
	switch {
	case err != nil:
		return err.Error()
	case exit == 0:
		return ""
	}
	problem := fmt.Sprintf("exit code %d", exit)
	if output = strings.TrimSpace(strings.ToValidUTF8(output, "")); output != "" {
		problem += ": " + output
	}
	return problem
}

func (r *Runner) get(ctx context.Context, to fleet.HealthcheckHTTP) string {
	path := to.Path
	if path == "" {
		path = "/"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(to.Port)+path, nil)
	if err != nil {
		return err.Error()
	}
	res, err := r.client.Do(req)
	if err != nil {
		return err.Error()
	}
	_ = res.Body.Close() // its status is all that counts
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return "answered " + res.Status
	}
	return ""
}

func (r *Runner) keep(ctx context.Context, status fleet.HealthStatus) {
	if err := r.write(status); err != nil {
		r.log.WarnContext(ctx, "the verdict of the healthcheck cannot be written", "error", err)
	}
}

// write replaces the verdict as a whole.
func (r *Runner) write(status fleet.HealthStatus) error {
	doc, err := json.Marshal(status)
	if err != nil {
		return err
	}
	tmp := r.statePath() + ".new"
	if err := os.WriteFile(tmp, doc, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, r.statePath())
}

// Verdict is the last verdict; nil while there is none, or no probe.
func (r *Runner) Verdict() *fleet.HealthStatus {
	if _, err := os.Lstat(r.configPath()); err != nil {
		return nil
	}
	data, err := readFile(r.statePath())
	if err != nil {
		return nil
	}
	return fleet.ParseHealth(data)
}

// readFile reads a bounded regular file.
func readFile(path string) ([]byte, error) {
	// What is no file, a pipe for one, must not hold the reader up.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", path, maxFile)
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}
