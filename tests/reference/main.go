// Command reference runs one etcd member from etcd's own server module, for the tests to compare ringd with.
//
// It takes etcd's flags, prints "ready <client address>" once the member serves, and stops on SIGTERM or SIGINT.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/pkg/v3/flags"
	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run() error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	config, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	member, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer member.Close()
	select {
	case <-member.Server.ReadyNotify():
		fmt.Printf("ready %s\n", config.ListenClientUrls[0].Host)
	case err := <-member.Err():
		return err
	case <-stop:
		return nil
	}
	select {
	case err := <-member.Err():
		return err
	case <-stop:
		return nil
	}
}

// parse reads etcd's own flags. Those that etcd's flag set only keeps as values of its own are copied into the
// configuration here: the addresses, and the one other that the tests pass.
func parse(arguments []string) (*embed.Config, error) {
	config := embed.NewConfig()
	set := flag.NewFlagSet("reference", flag.ContinueOnError)
	config.AddFlags(set)
	set.StringVar(&config.ClusterState, "initial-cluster-state", config.ClusterState, "new or existing")
	if err := set.Parse(arguments); err != nil {
		return nil, err
	}
	if set.NArg() != 0 {
		return nil, fmt.Errorf("%q is not a flag", set.Arg(0))
	}
	config.ListenPeerUrls = flags.UniqueURLsFromFlag(set, "listen-peer-urls")
	config.AdvertisePeerUrls = flags.UniqueURLsFromFlag(set, "initial-advertise-peer-urls")
	config.ListenClientUrls = flags.UniqueURLsFromFlag(set, "listen-client-urls")
	config.AdvertiseClientUrls = flags.UniqueURLsFromFlag(set, "advertise-client-urls")
	config.MaxConcurrentStreams = flags.Uint32FromFlag(set, "max-concurrent-streams")
	return config, nil
}
