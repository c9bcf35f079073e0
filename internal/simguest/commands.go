package simguest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// process is one run of built-in commands: a single command, or a script.
type process struct {
	ctx    context.Context //nolint:containedctx // the life of the process
	m      Machine
	env    map[string]string
	cwd    string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// builtin runs a command and returns its exit code. An error means that a
// stream broke off or ctx ended.
type builtin func(p *process, args []string) (int, error)

var builtins map[string]builtin

func init() {
	builtins = map[string]builtin{
		"true": succeed, ":": succeed, "false": fail, "exit": exit,
		"echo": echo, "printf": printf, "cat": cat, "sleep": sleep, "seq": seq, "yes": yes,
		"env": environment, "pwd": pwd, "hostname": hostname, "test": test, "cd": cd, "mkdir": mkdir,
		"sh": shell, "bash": shell,
	}
}

func newProcess(ctx context.Context, m Machine, spec fleet.ExecSpec, stdio fleet.Stdio) *process {
	p := &process{
		ctx: ctx, m: m, cwd: spec.Cwd, stdin: stdio.Stdin, stdout: stdio.Stdout, stderr: stdio.Stderr,
		env: map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "USER": "root"},
	}
	maps.Copy(p.env, spec.Env)
	if p.cwd == "" {
		p.cwd = "/"
	}
	if p.stdin == nil {
		p.stdin = bytes.NewReader(nil)
	}
	if p.stdout == nil {
		p.stdout = io.Discard
	}
	if p.stderr == nil {
		p.stderr = io.Discard
	}
	return p
}

// closeStdin ends a read that is under way, where the stream allows it.
func (p *process) closeStdin() {
	if c, ok := p.stdin.(io.Closer); ok {
		_ = c.Close() // nothing to do about it
	}
}

func (p *process) exec(argv []string) (int, error) {
	if len(argv) == 0 || argv[0] == "" {
		return 0, fleet.Errorf(fleet.CodeInvalidArgument, "the command is empty")
	}
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	run := builtins[path.Base(argv[0])]
	if run == nil {
		return p.complain(127, "%s: not found", argv[0])
	}
	return run(p, argv[1:])
}

func (p *process) complain(code int, format string, args ...any) (int, error) {
	_, err := fmt.Fprintf(p.stderr, format+"\n", args...)
	return code, err
}

func succeed(*process, []string) (int, error) { return 0, nil }
func fail(*process, []string) (int, error)    { return 1, nil }

// exitError ends a whole script.
type exitError int

func (exitError) Error() string { return "exit" }

func exit(p *process, args []string) (int, error) {
	if len(args) == 0 {
		return 0, exitError(0)
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return p.complain(2, "exit: Illegal number: %s", args[0])
	}
	return n & 255, exitError(n & 255)
}

func echo(p *process, args []string) (int, error) {
	end := "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	_, err := io.WriteString(p.stdout, strings.Join(args, " ")+end)
	return 0, err
}

// printf knows %s, %d and the usual escapes; each argument is used once.
func printf(p *process, args []string) (int, error) {
	if len(args) == 0 {
		return p.complain(2, "usage: printf format [arg ...]")
	}
	format, args := args[0], args[1:]
	format = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`, `\r`, "\r", `\0`, "\x00").Replace(format)
	for strings.Contains(format, "%s") || strings.Contains(format, "%d") {
		i := strings.IndexByte(format, '%')
		next := ""
		if len(args) > 0 {
			next, args = args[0], args[1:]
		}
		format = format[:i] + next + format[i+2:]
	}
	_, err := io.WriteString(p.stdout, format)
	return 0, err
}

func cat(p *process, args []string) (int, error) {
	if len(args) == 0 {
		args = []string{"-"}
	}
	code := 0
	for _, name := range args {
		if name == "-" {
			if _, err := io.Copy(p.stdout, p.stdin); err != nil {
				return 0, err
			}
			continue
		}
		data, err := p.read(name)
		if err != nil {
			if code, err = p.complain(1, "cat: can't open '%s': %v", name, err); err != nil {
				return code, err
			}
			continue
		}
		if _, err := p.stdout.Write(data); err != nil {
			return 0, err
		}
	}
	return code, nil
}

func (p *process) read(name string) ([]byte, error) {
	data, ok, err := p.m.Read(p.abs(name))
	if err == nil && !ok {
		err = errNoFile
	}
	return data, err
}

var errNoFile = errors.New("No such file or directory") //nolint:staticcheck // as tools print it

func (p *process) abs(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(p.cwd, name)
}

func sleep(p *process, args []string) (int, error) {
	total := time.Duration(0)
	for _, a := range args {
		if a == "infinity" {
			total = math.MaxInt64
			break
		}
		s, err := strconv.ParseFloat(strings.TrimSuffix(a, "s"), 64)
		if err != nil || s < 0 {
			return p.complain(1, "sleep: invalid number '%s'", a)
		}
		total += time.Duration(s * float64(time.Second))
	}
	timer := time.NewTimer(total)
	defer timer.Stop()
	select {
	case <-timer.C:
		return 0, nil
	case <-p.m.Done:
		return 0, ErrStopped
	case <-p.ctx.Done():
		return 0, p.ctx.Err()
	}
}

func seq(p *process, args []string) (int, error) {
	from, to := 1, 0
	var err error
	switch len(args) {
	case 1:
		to, err = strconv.Atoi(args[0])
	case 2:
		var err2 error
		from, err2 = strconv.Atoi(args[0])
		to, err = strconv.Atoi(args[1])
		err = errors.Join(err, err2)
	default:
		err = errors.New("one or two numbers")
	}
	if err != nil {
		return p.complain(1, "usage: seq [first] last")
	}
	return 0, p.flood(func(buf []byte) ([]byte, bool) {
		for ; from <= to && len(buf) < floodChunk; from++ {
			buf = append(strconv.AppendInt(buf, int64(from), 10), '\n')
		}
		return buf, from <= to
	})
}

func yes(p *process, args []string) (int, error) {
	line := "y\n"
	if len(args) > 0 {
		line = strings.Join(args, " ") + "\n"
	}
	return 0, p.flood(func(buf []byte) ([]byte, bool) {
		for len(buf) < floodChunk {
			buf = append(buf, line...)
		}
		return buf, true
	})
}

const floodChunk = 32 << 10

// flood writes chunk by chunk until more is false, ctx ends or the VM stops.
func (p *process) flood(fill func([]byte) (chunk []byte, more bool)) error {
	buf, more := make([]byte, 0, floodChunk+1024), true
	for more {
		if err := p.over(); err != nil {
			return err
		}
		buf, more = fill(buf[:0])
		if _, err := p.stdout.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

func environment(p *process, _ []string) (int, error) {
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p.env)) {
		out.WriteString(k + "=" + p.env[k] + "\n")
	}
	_, err := io.WriteString(p.stdout, out.String())
	return 0, err
}

func pwd(p *process, _ []string) (int, error) {
	_, err := io.WriteString(p.stdout, p.cwd+"\n")
	return 0, err
}

func cd(p *process, args []string) (int, error) {
	if len(args) == 1 {
		p.cwd = p.abs(args[0])
	}
	return 0, nil
}

// mkdir makes nothing: every directory is there already.
func mkdir(p *process, args []string) (int, error) {
	if len(args) > 0 && args[0] == "-p" {
		args = args[1:]
	}
	if len(args) == 0 {
		return p.complain(1, "mkdir: missing operand")
	}
	return 0, nil
}

func hostname(p *process, _ []string) (int, error) {
	_, err := io.WriteString(p.stdout, p.m.Hostname+"\n")
	return 0, err
}

// test knows -e and -f.
func test(p *process, args []string) (int, error) {
	if len(args) != 2 || args[0] != "-e" && args[0] != "-f" {
		return p.complain(2, "test: only -e and -f are simulated")
	}
	switch _, err := p.read(args[1]); {
	case errors.Is(err, errNoFile):
		return 1, nil
	default:
		return 0, err
	}
}
