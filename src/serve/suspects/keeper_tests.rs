use super::*;
use crate::base::timestamp;
use crate::queue::{Behind, ShuntedEnvelope, ShuntedRecipient};
use crate::serve::handed::MessageFile;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

const BYTES: &[u8] = b"Subject: x\r\n\r\nx\r\n";
const LIFETIME: Duration = Duration::from_hours(5 * 24);

fn suspect() -> Suspect {
    Suspect { size: BYTES.len() as u64, since: timestamp::now(), counted: 1, deaths: Vec::new(), tried_at: None }
}

/// A message to these, of this age.
fn shunted(to: &[&str], age: Duration) -> Shunted {
    let since = timestamp::now() - i64::try_from(age.as_micros()).unwrap();
    let recipients =
        to.iter().map(|to| ShuntedRecipient { address: (*to).to_owned(), original: None }).collect::<Vec<_>>();
    let envelope = ShuntedEnvelope {
        sender: "lisa@x".into(),
        recipients,
        queue_id: None,
        client_address: None,
        sasl_username: None,
        no_sent: false,
        behind: Behind::Mta,
    };
    let size = BYTES.len() as u64;
    Shunted { size, since, set_aside_at: since, deaths: Vec::new(), envelopes: vec![envelope] }
}

type Tell = Box<dyn Fn(Vec<(Digest, Shunted)>) + Send>;

/// A place for what is remembered; and a keeper that works where it is asked to, whose list of copies comes here.
struct Scene {
    folder: tempfile::TempDir,
    told: Receiver<Vec<Digest>>,
    keeper: Keeper<Tell>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder);
        let (tell, told) = channel();
        let tell: Tell = Box::new(move |copies| {
            let _ = tell.send(copies.into_iter().map(|(digest, _)| digest).collect());
        });
        let keeper = Keeper { settings, store: None, tell, unwritten: BTreeMap::new(), speak_at: BTreeMap::new() };
        Self { folder, told, keeper }
    }

    fn store(&self) -> ShuntedStore {
        ShuntedStore::existing(self.folder.path()).unwrap()
    }

    fn set_aside(&mut self, to: &[&str]) -> (Digest, bool) {
        let digest = Digest::of(BYTES);
        let order = Order::SetAside(digest, Box::new(shunted(to, Duration::ZERO)), Body::Memory(BYTES.to_vec()));
        (digest, self.keeper.obey(order))
    }
}

fn settings(folder: &tempfile::TempDir) -> KeeperSettings {
    KeeperSettings { state_directory: folder.path().to_owned(), queue_lifetime: LIFETIME }
}

#[test]
fn a_message_is_spoken_of_each_day_more_often_on_the_last_and_for_ever() {
    let (mut age, mut hours) = (Duration::from_hours(1), Vec::new());
    for _ in 0..14 {
        age = next_word(age, 5 * DAY);
        hours.push(age.as_secs() / 3600);
    }
    assert_eq!(hours, [25, 49, 73, 96, 100, 104, 108, 112, 116, 120, 144, 168, 192, 216]);
    // A queue that gives up within the day.
    assert_eq!(next_word(Duration::ZERO, Duration::from_hours(3)), Duration::from_hours(3));
}

#[test]
fn what_is_ordered_is_done_to_the_last_and_the_next_process_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let (tell, told) = channel();
    let orders = start(settings(&folder), move |copies| drop(tell.send(copies))).unwrap();
    // What there was before this process began is told without an order.
    assert_eq!(told.recv().unwrap(), []);
    let (first, second) = (Digest::of(BYTES), Digest::of(b"another"));
    orders.send(Order::Remember(first, suspect())).unwrap();
    orders.send(Order::Remember(second, Suspect { size: 7, ..suspect() })).unwrap();
    let copy = shunted(&["doug@x"], Duration::ZERO);
    orders.send(Order::SetAside(first, Box::new(copy.clone()), Body::Memory(BYTES.to_vec()))).unwrap();
    orders.send(Order::Forget(second)).unwrap();
    drop(orders);
    // It is told once that there is a copy, and of nothing else.
    assert_eq!(told.recv().unwrap(), [(first, copy)]);
    assert!(told.recv().is_err(), "it has ended");
    let remembered = remembered(&settings(&folder), Instant::now());
    assert!(remembered.may_know(BYTES.len() as u64));
    assert!(!remembered.may_know(7), "it was forgotten");
    assert_eq!(remembered.figures().shunted, 1);
}

#[test]
fn a_copy_is_made_of_a_message_wherever_it_is_and_goes_with_its_last_recipient() {
    let mut scene = Scene::new();
    let (digest, changed) = scene.set_aside(&["doug@x", "scuba@x"]);
    assert!(changed);
    assert_eq!(scene.store().read(&digest).unwrap().unwrap().1, BYTES);
    assert!(!scene.set_aside(&["doug@x", "scuba@x"]).1, "it is there, and as it was");
    for (to, left) in [("doug@x", true), ("scuba@x", false)] {
        let order = Order::Delivered { digest, sender: "lisa@x".into(), to: vec![to.into()] };
        assert!(scene.keeper.obey(order), "whoever removes it, others have to hear of it");
        assert_eq!(scene.store().header(&digest).unwrap().is_some(), left);
    }
    let path = scene.folder.path().join("message");
    let mut file = MessageFile::create(path).unwrap();
    file.append(b"in a file").unwrap();
    let digest = Digest::of(b"in a file");
    let copy = Shunted { size: 9, ..shunted(&["doug@x"], Duration::ZERO) };
    assert!(scene.keeper.obey(Order::SetAside(digest, Box::new(copy), Body::File(file))));
    assert_eq!(scene.store().read(&digest).unwrap().unwrap().1, b"in a file");
}

#[test]
fn what_cannot_be_written_is_written_as_soon_as_it_can() {
    let mut scene = Scene::new();
    let digest = Digest::of(BYTES);
    let nowhere = scene.folder.path().join("nowhere");
    scene.keeper.settings.state_directory = nowhere.join("state");
    // In place of a folder there is a file.
    fs::write(&nowhere, "").unwrap();
    assert!(!scene.keeper.obey(Order::Remember(digest, suspect())));
    assert!(!scene.set_aside(&["doug@x"]).1);
    scene.keeper.look(false);
    assert!(scene.told.try_recv().is_err(), "nobody knows which copies there are");
    fs::remove_file(&nowhere).unwrap();
    scene.keeper.look(false);
    let store = ShuntedStore::existing(&nowhere.join("state")).unwrap();
    assert!(store.suspect(&digest).unwrap().is_some());
    assert_eq!(scene.told.try_recv().unwrap(), []);
    assert!(scene.keeper.unwritten.is_empty());
}

#[test]
fn a_folder_that_is_taken_away_is_made_anew_and_used() {
    let mut scene = Scene::new();
    let (digest, _) = scene.set_aside(&["doug@x"]);
    let take_away = |path: &Path| fs::remove_dir_all(path.parent().unwrap()).unwrap();
    take_away(&scene.store().path(&digest));
    assert!(!scene.set_aside(&["doug@x"]).1, "what was open is gone");
    assert!(scene.set_aside(&["doug@x"]).1);
    assert!(scene.store().header(&digest).unwrap().is_some());
    assert!(!scene.keeper.obey(Order::Remember(digest, suspect())));
    fs::remove_dir_all(scene.folder.path().join("suspects")).unwrap();
    for written in [false, true] {
        scene.keeper.obey(Order::Remember(digest, suspect()));
        assert_eq!(scene.keeper.unwritten.is_empty(), written);
    }
    assert!(scene.store().suspect(&digest).unwrap().is_some());
}

#[test]
fn what_is_delivered_before_it_could_be_written_is_not_written_any_more() {
    let mut scene = Scene::new();
    let digest = Digest::of(BYTES);
    scene.keeper.unwritten.insert(digest, suspect());
    assert!(!scene.keeper.obey(Order::Forget(digest)));
    scene.keeper.look(false);
    assert!(scene.store().suspect(&digest).unwrap().is_none());
}

#[test]
fn each_copy_is_spoken_of_at_its_time_and_forgotten_once_it_is_gone() {
    let mut scene = Scene::new();
    let (digest, _) = scene.set_aside(&["doug@x"]);
    // One that was set aside by this process was spoken of when that was done; the next word is due in a day.
    scene.keeper.look(false);
    let due = scene.keeper.speak_at[&digest];
    assert!(due >= DAY);
    scene.keeper.look(false);
    assert_eq!(scene.keeper.speak_at[&digest], due, "there was nothing to be said");
    scene.keeper.speak_at.insert(digest, Duration::ZERO);
    scene.keeper.look(false);
    assert!(scene.keeper.speak_at[&digest] >= DAY, "it was spoken of");
    // One of before this process began is spoken of at once.
    scene.keeper.speak_at.clear();
    scene.keeper.look(true);
    assert!(scene.keeper.speak_at[&digest] >= DAY);
    assert_eq!(scene.told.try_iter().collect::<Vec<_>>(), vec![vec![digest]; 4]);
    scene.store().drop_copy(&digest).unwrap();
    scene.keeper.look(false);
    assert!(scene.keeper.speak_at.is_empty());
}
