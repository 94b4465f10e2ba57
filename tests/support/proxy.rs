//! What stands between members: each is reached by its peers through a proxy that can stop forwarding, in one direction
//! or both, as a network that drops what is sent.
//!
//! A cut is from one member to another, whoever opened the connection. Bytes that are on their way stay there until the
//! cut is mended, the end of a connection included, so a member learns of a cut by silence alone. Whose a connection is
//! the kernel's tables tell, because not every request between members says it.

use std::{
    fs,
    io::{Error, Result},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::cluster::Cluster;

/// Bytes forwarded at once.
const PIECE: usize = 64 * 1024;

/// Which links are cut: from the first index to the second.
type Cuts = Vec<Vec<bool>>;

/// A proxy in front of every member of a cluster. They end with the process.
pub struct Proxies {
    cuts: watch::Sender<Cuts>,
    processes: Arc<[AtomicU32]>,
}

impl Proxies {
    /// Has the members of a cluster that is not founded yet reach each other through proxies.
    pub fn between(cluster: &mut Cluster) -> Self {
        let count = cluster.members.len();
        let (cuts, _) = watch::channel(vec![vec![false; count]; count]);
        let processes: Arc<[AtomicU32]> = (0..count).map(|_| AtomicU32::new(0)).collect();
        for (to, member) in cluster.members.iter_mut().enumerate() {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            member.advertise_peers_at(listener.local_addr().expect("an address"));
            let proxy = Proxy {
                to,
                member: member.peer_address(),
                cuts: cuts.clone(),
                processes: processes.clone(),
            };
            thread::spawn(move || proxy.run(listener));
        }
        Self { cuts, processes }
    }

    /// Tells the proxies the members' processes. Connections of others are not forwarded.
    pub fn know(&self, cluster: &Cluster) {
        for (process, member) in self.processes.iter().zip(&cluster.members) {
            let id = if member.is_started() { member.process_id() } else { 0 };
            process.store(id, Ordering::SeqCst);
        }
    }

    /// Cuts what goes from one member to another.
    pub fn cut(&self, from: usize, to: usize) {
        self.cuts.send_modify(|cuts| cuts[from][to] = true);
    }

    /// Mends all cuts.
    pub fn mend(&self) {
        self.cuts
            .send_modify(|cuts| cuts.iter_mut().for_each(|cuts| cuts.fill(false)));
    }
}

/// The proxy in front of one member.
struct Proxy {
    to: usize,
    member: String,
    cuts: watch::Sender<Cuts>,
    processes: Arc<[AtomicU32]>,
}

impl Proxy {
    fn run(self, listener: TcpListener) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime for a proxy").block_on(async {
            listener.set_nonblocking(true).expect("a listener that does not block");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                // Whoever is nobody's any more has ended by itself.
                let Ok(Some(from)) = self.owner(&stream) else { continue };
                let (there, back) = (self.link(from, self.to), self.link(self.to, from));
                tokio::spawn(forward(stream, self.member.clone(), there, back));
            }
        });
    }

    fn link(&self, from: usize, to: usize) -> Link {
        let cuts = self.cuts.subscribe();
        Link { from, to, cuts }
    }

    /// The member that opened a connection.
    fn owner(&self, stream: &TcpStream) -> Result<Option<usize>> {
        let Some(inode) = inode(stream.peer_addr()?, stream.local_addr()?)? else {
            return Ok(None);
        };
        let wanted = format!("socket:[{inode}]");
        let holds = |process: &AtomicU32| {
            let Ok(files) = fs::read_dir(format!("/proc/{}/fd", process.load(Ordering::SeqCst))) else {
                return false;
            };
            let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
            targets.any(|target| target.as_os_str() == wanted.as_str())
        };
        Ok(self.processes.iter().position(holds))
    }
}

/// The inode of the socket that is bound here and connected there.
fn inode(bound: SocketAddr, connected: SocketAddr) -> Result<Option<String>> {
    let text = |address: SocketAddr| match address {
        SocketAddr::V4(address) => Ok(hexadecimal(address)),
        SocketAddr::V6(_) => Err(Error::other("not of IPv4")),
    };
    let (bound, connected) = (text(bound)?, text(connected)?);
    let table = fs::read_to_string("/proc/net/tcp")?;
    let found = table.lines().find_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let is_it = columns.next() == Some(&bound) && columns.next() == Some(&connected);
        is_it.then(|| columns.nth(6)).flatten()
    });
    Ok(found.map(str::to_string))
}

/// An address as the kernel's table has it.
fn hexadecimal(address: SocketAddrV4) -> String {
    let number = u32::from_ne_bytes(Ipv4Addr::octets(address.ip()));
    format!("{number:08X}:{:04X}", address.port())
}

/// What leads from one member to another.
struct Link {
    from: usize,
    to: usize,
    cuts: watch::Receiver<Cuts>,
}

impl Link {
    /// Waits while it is cut.
    async fn open(&mut self) -> Result<()> {
        let (from, to) = (self.from, self.to);
        let open = self.cuts.wait_for(|cuts| !cuts[from][to]).await;
        open.map(|_| ()).map_err(Error::other)
    }

    async fn carry(&mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            self.open().await?;
            let read = from.read(&mut piece).await;
            self.open().await?;
            match read? {
                0 => return to.shutdown().await,
                length => to.write_all(&piece[..length]).await?,
            }
        }
    }
}

/// Forwards a connection until either side is done with it.
async fn forward(stream: TcpStream, member: String, mut there: Link, mut back: Link) -> Result<()> {
    there.open().await?;
    let other = TcpStream::connect(member).await?;
    stream.set_nodelay(true)?;
    other.set_nodelay(true)?;
    let (from, to) = stream.into_split();
    let (other_from, other_to) = other.into_split();
    tokio::try_join!(there.carry(from, other_to), back.carry(other_from, to))?;
    Ok(())
}
