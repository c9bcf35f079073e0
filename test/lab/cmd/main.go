// Command cmd keeps a lab of several hosts up for a person:
//
//	go run ./test/lab/cmd up --hosts 3
//	go run ./test/lab/cmd sweep
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fusevm/fuse/test/lab/rig"
)

func main() {
	if err := run(os.Stdin, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

const usage = "usage: go run ./test/lab/cmd up [--hosts N] [--driver qemu|sim] [--servers N] [--postgres] [--log FILE] | sweep"

func run(in io.Reader, out io.Writer, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "sweep":
		return rig.Sweep()
	case len(args) > 0 && args[0] == "up":
		return up(in, out, args[1:])
	}
	return errors.New(usage)
}

func up(in io.Reader, out io.Writer, args []string) (err error) {
	f := flag.NewFlagSet("up", flag.ContinueOnError)
	o := rig.Options{}
	f.IntVar(&o.Hosts, "hosts", 3, "hosts")
	f.StringVar(&o.Driver, "driver", "qemu", "qemu, or sim")
	f.IntVar(&o.Servers, "servers", 1, "servers; several of them need --postgres")
	f.BoolVar(&o.Postgres, "postgres", false, "keep the state in a PostgreSQL")
	logFile := f.String("log", filepath.Join(os.TempDir(), "fuse-lab.log"), "`file` for what servers and agents print")
	images := f.String("images", filepath.Join(os.TempDir(), "fuse-lab-images"), "`directory` that keeps the built images for the next time")
	if err := f.Parse(args); err != nil {
		return err
	}
	log, err := os.Create(*logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	o.Log = log

	// From here on an interrupt ends the lab in order.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	fmt.Fprintln(out, "building")
	remove, err := rig.Build(*images)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	a := &rig.Alone{}
	l := rig.New(a, o)
	describe(out, l, *logFile)
	orders(in, out, l, stop)
	fmt.Fprintln(out, "taking it down")
	if !a.Close() {
		return errors.New("not all of it could be taken down")
	}
	return nil
}

func describe(out io.Writer, l *rig.Lab, log string) {
	fmt.Fprintf(out, "\nlab %s. In another terminal:\n\n", l.ID())
	for _, e := range l.Environ()[:2] {
		fmt.Fprintln(out, "  export", e)
	}
	fmt.Fprintf(out, "  alias fuse=%s\n  fuse host ls\n  fuse create --task-id one\n\n", l.Binary())
	for _, h := range l.Hosts() {
		fmt.Fprintf(out, "%s at %s, data in %s\n", h.ID(), h.URL(), h.Dir())
	}
	fmt.Fprintf(out, "everybody's output is in %s\n\n%s\n", log, help)
}

const help = `here: cut|cutin|cutout|heal|slow|kill|boot|reboot|killagent|startagent N, slow N DELAY,
shell N prints how to get a shell on host N; ^C or ^D takes the lab down`

// orders carries out what a person types, until the input ends or a signal comes.
func orders(in io.Reader, out io.Writer, l *rig.Lab, stop <-chan os.Signal) {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	}()
	for {
		select {
		case <-stop:
			return
		case line, ok := <-lines:
			if !ok {
				return
			}
			if words := strings.Fields(line); len(words) > 0 {
				if err := order(out, l, words); err != nil {
					fmt.Fprintln(out, err)
				} else {
					fmt.Fprintln(out, "done")
				}
			}
		}
	}
}

func order(out io.Writer, l *rig.Lab, words []string) error {
	n := 0
	if len(words) > 1 {
		n, _ = strconv.Atoi(words[1])
	}
	if n < 1 || n > len(l.Hosts()) {
		return fmt.Errorf("name a host from 1 to %d\n%s", len(l.Hosts()), help)
	}
	h := l.Host(n - 1)
	if down := []string{"boot", "cut", "cutin", "cutout", "heal"}; !h.Up() && !slices.Contains(down, words[0]) {
		return fmt.Errorf("host %d is down: boot %d", n, n)
	}
	todo := map[string]func(){
		"cut": h.Cut, "cutin": h.CutIn, "cutout": h.CutOut, "heal": h.Heal, "kill": h.Kill, "reboot": h.Reboot,
		"killagent": h.KillAgent, "startagent": h.StartAgent,
		"shell": func() { fmt.Fprintln(out, strings.Join(h.Enter("bash"), " ")) },
	}
	switch {
	case words[0] == "boot" && h.Up():
		return fmt.Errorf("host %d is up", n)
	case words[0] == "boot":
		h.Boot()
	case words[0] == "slow" && len(words) == 3:
		d, err := time.ParseDuration(words[2])
		if err != nil {
			return err
		}
		h.Slow(d, d/10)
	case todo[words[0]] != nil:
		todo[words[0]]()
	default:
		return errors.New(help)
	}
	return nil
}
