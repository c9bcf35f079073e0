// Package doctor looks at a machine and says what is in the way of running
// environments on it, and what to do about each finding.
package doctor

import (
	"context"
	"fmt"
	"time"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, but not well, or not for everybody
	Fail Level = "fail" // environments cannot run, or nobody reaches them
)

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Check is one look at the machine. Run fills in all but the name.
type Check struct {
	Name string
	Run  func(ctx context.Context) Finding
}

// checkTime bounds one check; booting a guest in order to try KVM is the
// longest.
const checkTime = 2 * time.Minute

// Run makes the checks one after another and tells of each as it ends.
func Run(ctx context.Context, checks []Check, each func(Finding)) []Finding {
	var out []Finding
	for _, c := range checks {
		if ctx.Err() != nil {
			return out
		}
		limited, cancel := context.WithTimeout(ctx, checkTime)
		f := c.Run(limited)
		cancel()
		f.Check = c.Name
		out = append(out, f)
		each(f)
	}
	return out
}

// Worst is the gravest level of the findings.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		if f.Level == Fail || worst == OK {
			worst = f.Level
		}
	}
	return worst
}

func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Detail: fmt.Sprintf(format, args...)}
}

func warn(remedy, format string, args ...any) Finding {
	return Finding{Level: Warn, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

func fail(remedy, format string, args ...any) Finding {
	return Finding{Level: Fail, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}
