package service

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/state"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// host returns the way to a marquee that may be used.
func (s *Service) host(id model.MarqueeID) (h *reach.Host, l model.Layout, err error) {
	var m records.Marquee
	if err := s.Store.View(func(tx *state.ReadTx) error {
		row, ok := records.Marquees.Get(tx, string(id))
		if !ok {
			return notFound("marquee", string(id))
		}
		m = *row
		return nil
	}); err != nil {
		return nil, l, err
	}
	if m.Admin != model.AdminActive {
		return nil, l, fleet.Errorf(fleet.CodeConflict, "marquee %s is quarantined by a person: %s", m.Name, m.AdminWhy).With(fleet.DetailReason, "quarantined")
	}
	l, err = model.NewLayout(m.Root)
	return s.Hosts.Host(m), l, err
}

// shellPath is where commands on a host are looked for.
const shellPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH; "

// words makes a command line of a script and its arguments.
func words(script string, args ...string) (string, error) {
	return sshx.Quote(append([]string{"sh", "-c", shellPath + script, "sh"}, args...)...)
}

// Logs writes containers' output to w as Compose shows it, each line with its
// service in front, until it is all there; with Follow until ctx ends, which is
// no error. At most two streams are open to a marquee; more is an unavailable
// error.
func (s *Service) Logs(ctx context.Context, id string, req LogsRequest, w io.Writer) error {
	p, err := s.Playground(ctx, id)
	if err != nil {
		return err
	}
	for _, name := range req.Services {
		if err := service(p, name); err != nil {
			return err
		}
	}
	if req.Tail < 0 || req.Tail > MaxTail {
		return fleet.Invalid("tail", fmt.Sprint(MaxTail), "ask for fewer lines", "is %d", req.Tail)
	}
	host, layout, err := s.host(p.Marquee)
	if err != nil {
		return err
	}
	file, err := layout.Path(model.PlaceCompose, p.Project.String())
	if err != nil {
		return err
	}
	args := []string{"-p", p.Project.String(), "-f", file, "logs", "--no-color", "--tail", fmt.Sprint(cmp.Or(req.Tail, MaxTail))}
	if req.Follow {
		args = append(args, "--follow")
	}
	if req.Timestamps {
		args = append(args, "--timestamps")
	}
	if req.Since > 0 {
		args = append(args, "--since", fmt.Sprintf("%ds", int(req.Since.Seconds())+1))
	}
	line, err := words(`if docker compose version >/dev/null 2>&1; then exec docker compose "$@"; else exec docker-compose "$@"; fi`, append(args, req.Services...)...)
	if err != nil {
		return err
	}
	res, err := host.Run(ctx, sshx.Command{Line: line, Stdout: w, Stream: true})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return explainReach(err)
	case res.Status != 0:
		return fleet.Errorf(fleet.CodeUnavailable, "logs of %s: status %d: %s", p.Name, res.Status, lastLine(res.Stderr))
	}
	return nil
}

func service(p Playground, name string) error {
	for _, s := range p.Services {
		if s.Name == name {
			return nil
		}
	}
	return notFound("service", name)
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	line := strings.ToValidUTF8(lines[len(lines)-1], "?")
	return line[:min(len(line), 300)]
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,199}$`)

// Bounds of a command.
const (
	maxArgs     = 1000
	maxArgBytes = 64 << 10
)

// command makes the command line of an Exec, and what has to come before its
// standard input: variables do not stand where others can see them.
func (req ExecRequest) command(container string) (line string, before []byte, err error) {
	total := 0
	for _, a := range req.Command {
		total += len(a)
	}
	if len(req.Command) == 0 || len(req.Command) > maxArgs || total > maxArgBytes {
		return "", nil, fleet.Invalid("command", fmt.Sprintf("1 to %d words of at most %d bytes in all", maxArgs, maxArgBytes), "give a command", "has %d words of %d bytes", len(req.Command), total)
	}
	if len(req.Stdin) > MaxStdin {
		return "", nil, fleet.Errorf(fleet.CodePayloadTooLarge, "standard input has %d bytes", len(req.Stdin)).With(fleet.DetailLimit, fmt.Sprint(MaxStdin))
	}
	if len(req.Env) > 0 && req.Terminal != nil {
		return "", nil, fleet.Invalid("env", "not with a terminal", "set them in the shell", "cannot be given")
	}
	args := []string{"-i"}
	if req.Terminal != nil {
		args = []string{"-it"}
	}
	for _, name := range sortedKeys(req.Env) {
		if !envName.MatchString(name) || strings.ContainsAny(req.Env[name], "\n\x00") {
			return "", nil, fleet.Invalid("env", "a name, and a value of one line", "give it in a file", "%.80q is not one", name)
		}
		args = append(args, "-e", name)
		before = fmt.Appendf(before, "%s=%s\n", name, req.Env[name])
	}
	for _, o := range []struct{ flag, value string }{{"--user", req.User}, {"--workdir", req.Workdir}} {
		if o.value != "" {
			args = append(args, o.flag+"="+o.value)
		}
	}
	script := `exec docker exec "$@"`
	if len(req.Env) > 0 {
		script = `while IFS= read -r l && [ -n "$l" ]; do export "$l"; done; ` + script
		before = append(before, '\n')
	}
	line, err = words(script, append(append(args, container), req.Command...)...)
	return line, before, err
}

// Exec runs a command in a service's container and returns its exit status.
// Output arrives as it comes. An error means that the command's end is not
// known, never that it failed; one whose caller goes away is not ended.
func (s *Service) Exec(ctx context.Context, id string, req ExecRequest) (status int, err error) {
	p, err := s.Playground(ctx, id)
	if err != nil {
		return 0, err
	}
	if err := service(p, req.Service); err != nil {
		return 0, err
	}
	host, _, err := s.host(p.Marquee)
	if err != nil {
		return 0, err
	}
	container, err := s.container(ctx, host, p, req.Service)
	if err != nil {
		return 0, err
	}
	line, before, err := req.command(container)
	if err != nil {
		return 0, err
	}
	cmd := sshx.Command{Line: line, Stdin: append(before, req.Stdin...), Stdout: req.Stdout, Stderr: req.Stderr, Terminal: req.Terminal, Stream: true}
	if req.Input != nil {
		cmd.Input = io.MultiReader(bytes.NewReader(before), req.Input)
	}
	res, err := host.Run(ctx, cmd)
	if err != nil {
		return 0, explainReach(err)
	}
	return res.Status, nil
}

// container finds the running container of a service, by our labels.
func (s *Service) container(ctx context.Context, host *reach.Host, p Playground, name string) (string, error) {
	args := []string{"--no-trunc"}
	for _, l := range []string{
		model.LabelInstallation + "=" + string(s.Installation), model.LabelPlayground + "=" + string(p.ID),
		"com.docker.compose.service=" + name, "com.docker.compose.oneoff=False",
	} {
		args = append(args, "--filter", "label="+l)
	}
	line, err := words(`exec docker ps -q "$@"`, args...)
	if err != nil {
		return "", err
	}
	res, err := host.Run(ctx, sshx.Command{Line: line})
	if err != nil {
		return "", explainReach(err)
	}
	ids := strings.Fields(string(res.Stdout))
	switch {
	case res.Status != 0:
		return "", fleet.Errorf(fleet.CodeUnavailable, "the marquee cannot list its containers: %s", lastLine(res.Stderr))
	case len(ids) == 0:
		return "", fleet.Errorf(fleet.CodeConflict, "no container of service %s runs", name).With(fleet.DetailReason, "not_running").
			With(fleet.DetailRemedy, "see fuse playground explain "+p.Name)
	}
	return ids[0], nil
}
