package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/bench"
	"github.com/fusevm/fuse/internal/cli"
)

// benchGuest is one measurement of an environment.
type benchGuest struct {
	bench.Guest
	url, token, tokenFile string
	megabytes             int64
}

func benchGuestCmd(streams cli.Streams) *cobra.Command {
	b := &benchGuest{}
	b.Out = streams.Out
	cmd := &cobra.Command{
		Use: "guest ENV", Short: "Measure commands and transfers of a running environment", Args: cobra.ExactArgs(1),
		Long: "guest runs commands in an environment and sends a file there and back, through\n" +
			"the API as any client does, and compares the bytes. With --ssh it measures ssh\n" +
			"and scp to a host beside it, in the same run.",
		RunE: func(cmd *cobra.Command, args []string) error {
			b.Env = args[0]
			return b.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&b.url, "url", "http://127.0.0.1:8080", "`URL` of the server")
	f.StringVar(&b.token, "token", "", "token of the server (prefer --token-file)")
	f.StringVar(&b.tokenFile, "token-file", "", "`file` that holds the token of the server")
	f.IntVar(&b.Execs, "execs", 100, "commands, a kind")
	f.Int64Var(&b.megabytes, "mb", 100, "size of the file in megabytes")
	f.StringVar(&b.SSH, "ssh", "", "`host` to measure ssh and scp with, as they take it")
	f.StringArrayVar(&b.SSHOptions, "ssh-option", nil, "argument for ssh and scp, such as -oPort=2222; may be repeated")
	f.StringToIntVar(&b.Processes, "process", nil, "`name=pid` of programs of this machine whose memory is told")
	return cmd
}

func (b *benchGuest) run(ctx context.Context) (err error) {
	b.Target.Base, b.Bytes = strings.TrimSuffix(b.url, "/"), b.megabytes*1000*1000
	if b.Target.Token, err = givenSecret("--token", b.token, b.tokenFile); err != nil {
		return err
	}
	b.Target.Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: bench.Workers}}
	defer b.Target.Client.CloseIdleConnections()
	return b.Run(ctx)
}
