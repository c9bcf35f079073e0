//go:build failpoints

package failpoint

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled says whether this binary obeys failpoints.
const Enabled = true

// pauseLimit bounds a pause whose test has died.
const pauseLimit = 2 * time.Minute

type point struct {
	kind, arg string
	at        int // 0: every hit
	hits      int
}

type table struct {
	mu     sync.Mutex
	points map[string]*point
}

var fromEnv = sync.OnceValues(func() (*table, error) {
	return parse(os.Getenv(Env))
})

// Hit marks a place where a test may interfere. It returns an error when the
// failpoint says so, or when FUSE_FAILPOINTS cannot be read.
func Hit(name string) error {
	t, err := fromEnv()
	if err != nil {
		return err
	}
	return t.hit(name)
}

func (t *table) hit(name string) error {
	kind, arg := t.next(name)
	switch kind {
	case "error":
		return fmt.Errorf("failpoint %s", name)
	case "exit":
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {}
	case "pause":
		return pause(arg)
	}
	return nil
}

func (t *table) next(name string) (kind, arg string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.points[name]
	if p == nil {
		return "", ""
	}
	p.hits++
	if p.at != 0 && p.at != p.hits {
		return "", ""
	}
	return p.kind, p.arg
}

func pause(path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("failpoint pause: %w", err)
	}
	for end := time.Now().Add(pauseLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("failpoint pause: %s is still there after %s", path, pauseLimit)
}

func parse(spec string) (*table, error) {
	t := &table{points: map[string]*point{}}
	for item := range strings.SplitSeq(spec, "|") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, p, err := parseItem(item)
		if err != nil {
			return nil, err
		}
		t.points[name] = p
	}
	return t, nil
}

func parseItem(item string) (string, *point, error) {
	name, action, ok := strings.Cut(item, "=")
	if !ok || name == "" {
		return "", nil, fmt.Errorf("%s: %q is not name=action", Env, item)
	}
	p := &point{kind: action}
	if kind, arg, ok := strings.Cut(action, "("); ok && strings.HasSuffix(arg, ")") {
		p.kind, p.arg = kind, strings.TrimSuffix(arg, ")")
	}
	if n, at, ok := strings.Cut(name, "@"); ok {
		i, err := strconv.Atoi(at)
		if err != nil || i < 1 {
			return "", nil, fmt.Errorf("%s: %q: the number after @ counts hits from 1", Env, item)
		}
		name, p.at = n, i
	}
	switch {
	case p.kind == "error" && p.arg == "", p.kind == "exit" && p.arg == "", p.kind == "pause" && p.arg != "":
		return name, p, nil
	default:
		return "", nil, fmt.Errorf("%s: %q: the action is error, exit or pause(path)", Env, item)
	}
}
