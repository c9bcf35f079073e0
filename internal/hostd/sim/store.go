package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// logFile, in the VM's directory, is all there is of a simulated VM: lines
// that are added up. One file that only grows costs a create far less than
// files that are replaced, and an idle VM holds no memory for what it keeps.
const logFile = "sim.log"

// maxLog is the size in bytes over which a log is written anew.
const maxLog = 2 * maxFiles

// content is what a log adds up to, and what one line adds.
type content struct {
	State *state          `json:"state,omitempty"`
	Files map[string]file `json:"files,omitempty"`
	// Credentials are those of the last rotation.
	Credentials *credentials `json:"credentials,omitempty"`
}

// state is what tells, across processes, that a simulated VM runs.
type state struct {
	BootID   string            `json:"boot_id"`
	Hostname string            `json:"hostname"`
	Started  time.Time         `json:"started"`
	Exit     *fleet.ExitRecord `json:"exit,omitempty"`
	Paused   bool              `json:"paused,omitempty"`
}

type file struct {
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// load reads a log. A line that was cut off by the end of its writer is as if
// it had not been written.
func load(dir string) (content, error) {
	sum := content{Files: map[string]file{}}
	doc, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil {
		return sum, fmt.Errorf("sim state: %w", err)
	}
	for line := range bytes.Lines(doc) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var c content
		if err := json.Unmarshal(line, &c); err != nil {
			return sum, fmt.Errorf("sim state: %w", err)
		}
		if c.State != nil {
			sum.State = c.State
		}
		if c.Credentials != nil {
			sum.Credentials = c.Credentials
		}
		maps.Copy(sum.Files, c.Files)
	}
	if sum.State == nil {
		return sum, fmt.Errorf("sim state: %w", os.ErrNotExist)
	}
	return sum, nil
}

// add writes a line. Only the first one makes the file: a VM that is removed
// meanwhile does not come back.
func add(dir string, c content, flags int) error {
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("sim state: %w", err)
	}
	path := filepath.Join(dir, logFile)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|flags, 0o600)
	if err != nil {
		return fmt.Errorf("sim state: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		if _, err = f.Write(append(line, '\n')); err != nil {
			err = errors.Join(err, f.Truncate(info.Size())) // part of a line would spoil the next
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("sim state: %w", err)
	}
	if info.Size() > maxLog {
		return rewrite(dir)
	}
	return nil
}

func rewrite(dir string) error {
	sum, err := load(dir)
	if err != nil {
		return err
	}
	return replace(dir, sum)
}

// replace makes a log add up to something else.
func replace(dir string, sum content) error {
	line, err := json.Marshal(sum)
	if err != nil {
		return fmt.Errorf("sim state: %w", err)
	}
	path := filepath.Join(dir, logFile)
	if err := os.WriteFile(path+".new", append(line, '\n'), 0o600); err != nil {
		return fmt.Errorf("sim state: %w", err)
	}
	return os.Rename(path+".new", path)
}

func erase(dir string) error {
	path := filepath.Join(dir, logFile)
	return errors.Join(remove(path), remove(path+".new"))
}
