package guest

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/fusevm/fuse/internal/cli/kit"
)

// Console prints what an environment's machine wrote to its console, made
// harmless for a terminal, and tells on standard error when it rebooted.
func Console(ctx context.Context, t kit.Tools, env string) error {
	a := &app{t}
	format, err := a.Format()
	if err != nil {
		return err
	}
	g, err := a.guest()
	if err != nil {
		return err
	}
	log, err := g.Console(ctx, env)
	if err != nil {
		return err
	}
	if format == "json" {
		return a.PrintJSON(log)
	}
	if log.Truncated {
		a.Progress("warning: the console is longer than this; its beginning is missing")
	}
	for _, b := range log.Reboots {
		a.Progress("the machine rebooted at %s: %s", b.At.Format(time.RFC3339), a.Cell(b.Cause))
	}
	_, err = fmt.Fprint(a.Out, strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return -1
	}, log.Output))
	return err
}
